// The idle time of ranks that run a schedule, in virtual time with imposed times, against the replay of its table.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "clock/virtual_clock.h"
#include "config/derived.h"
#include "replay/timeline.h"
#include "run/support.h"

namespace metroplex::run::schedule_clock_ranks_test {
namespace {

struct IdleCase {
  const char* schedule;
  int64_t pp, vpp, microbatches;
};

// Returns the time until the last compute action of all ranks ends. Adds the time of each action when it ends, so the
// receives that it waits for come before.
double pipeline_seconds(const config::Config& config, const test::TestLayout& layout,
                        const replay::TimelineCosts& costs, const price::LinkCost& link, plan::PipelineTable& table) {
  const auto ranks = static_cast<int>(layout.ranks());
  std::vector<double> cpu(static_cast<size_t>(ranks), 0), ends(cpu);
  const auto clock =
      std::make_shared<clock::VirtualClock>(ranks, link, [&](int rank) { return cpu[static_cast<size_t>(rank)]; });
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {.observer = clock},
                    [&](const comm::World& world) {
                      const auto rank = static_cast<size_t>(world.rank());
                      const auto assembly = step::assemble(config, world, test::kVocab);
                      const auto microbatches = static_cast<int>(config.train.global_batch_size);
                      if (rank == 0) table = assembly->model.table(config.parallel, microbatches, false);
                      const bool splits = config::splits_backward(config.parallel);
                      double before = 0;
                      assembly->model.executor->observers().add("times", [&](const plan::Action& action, double) {
                        const double chunks = static_cast<double>(config.parallel.vpp());
                        if (action.kind == plan::ActionKind::forward) cpu[rank] += costs.forward / chunks;
                        if (action.kind == plan::ActionKind::weight) cpu[rank] += costs.weight / chunks;
                        if (action.kind == plan::ActionKind::backward)
                          cpu[rank] += (costs.backward - (splits ? costs.weight : 0)) / chunks;
                        if (plan::is_compute(action.kind)) ends[rank] = clock->now(world.rank()) - before;
                      });
                      comm::barrier(world.groups().world);
                      before = clock->now(world.rank());
                      test::step_at(*assembly, 0);
                      assembly->model.executor->observers().remove("times");
                    });
  return *std::max_element(ends.begin(), ends.end());
}

TEST(ScheduleClock, RanksIdleAsLongAsTheReplaySays) {
  for (const IdleCase& test_case : std::vector<IdleCase>{{"1f1b", 4, 1, 8},
                                                         {"interleaved", 2, 2, 8},
                                                         {"zb_h1", 4, 1, 8},
                                                         {"zb_h2", 4, 1, 8},
                                                         {"zb_v", 4, 2, 8},
                                                         {"dualpipe_v", 2, 2, 6},
                                                         {"dualpipe_v", 4, 2, 8},
                                                         {"searched", 4, 1, 6}}) {
    for (const double hop : {0.0, 0.05}) {
      SCOPED_TRACE(base::concat(test_case.schedule, " pp ", test_case.pp, " hop ", hop));
      const test::TestLayout layout{1, test_case.pp, test_case.vpp, 1, false};
      config::Config config = test::small_gpt();
      config.model.num_layers = 8;
      config.parallel.pipeline_schedule = config::Choice<config::Schedule>(test_case.schedule);
      config.train.global_batch_size = test_case.microbatches;
      config = test::cut(config, layout);
      const replay::TimelineCosts costs{.forward = 1, .backward = 2.2, .weight = 1, .p2p = hop};
      plan::PipelineTable table;
      const double seconds =
          pipeline_seconds(config, layout, costs, {hop, std::numeric_limits<double>::infinity()}, table);
      const replay::Timeline timeline = replay::replay(table, costs);
      const double busy = std::accumulate(timeline.busy.begin(), timeline.busy.end(), 0.0);
      const double idle = 1 - busy / (seconds * static_cast<double>(test_case.pp));
      // On a free link, times are sums of less than 200 numbers: 200 x 2^-53 = 2e-14 relative. With hops, the
      // executor also waits for sends and for whole batches, which the replay does not: at most one hop per
      // microbatch, 8 x 0.05 of at least 20 seconds.
      EXPECT_NEAR(idle, timeline.total_bubble_share, hop == 0 ? 1e-12 : 0.02);
    }
  }
}

}  // namespace
}  // namespace metroplex::run::schedule_clock_ranks_test
