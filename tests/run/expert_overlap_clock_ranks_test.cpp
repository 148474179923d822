// The share of exchanges that parallel.overlap_moe_expert_parallel_comm hides, in virtual time with imposed times
// (bench/imposed_times.h).
#include <gtest/gtest.h>

#include "imposed_times.h"

namespace metroplex::run::expert_overlap_clock_ranks_test {
namespace {

// Exchanges about as long as the computation. Only the first forward and the last backward of
// a step have no partner, so 15 of 16 microbatches can hide their exchanges.
TEST(ExpertOverlapClock, HidesMostOfTheExchanges) {
  for (const int ranks : {2, 4}) {
    bench::ImposedRun run;
    run.ranks = ranks, run.microbatches = 16;
    const bench::Hidden hidden = bench::measure_hidden(run);
    EXPECT_GE(hidden.share, 0.8 * 15 / 16) << ranks << " ranks";
    EXPECT_LE(hidden.share, 1);
  }
}

TEST(ExpertOverlapClock, SavesNothingOnAFreeLink) {
  bench::ImposedRun run;
  run.link = 0;
  const bench::ImposedStep serial = bench::time_step(run);
  run.overlaps = true;
  EXPECT_DOUBLE_EQ(bench::time_step(run).seconds, serial.seconds);
  EXPECT_DOUBLE_EQ(serial.seconds, 2.0 * 8 * 3 * 2);  // layers, microbatches, forward and backward, both halves
}

}  // namespace
}  // namespace metroplex::run::expert_overlap_clock_ranks_test
