// The memory prediction of every rank on every layout against the rank's real memory in a training step.
#include "comm/collectives.h"
#include "forecast/memory_report.h"
#include "run/memory_cases.h"
#include "run/support.h"
#include "support/everyday.h"

namespace metroplex::test::memory_ranks_test {
namespace {

// Steps after the first one on this rank; more of them if threads of other ranks pass tensors.
void measure(const config::Config& config, const comm::World& world,
             const std::function<void(step::Assembly&, const forecast::MeasuredMemory&)>& check) {
  device::MemoryMeter meter;
  const auto assembly = step::assemble(config, world, kVocab);
  forecast::MemoryReport report(*assembly, meter);
  step_at(*assembly, 0);
  for (int64_t step = 1; step <= (config.parallel.pp() > 1 || config.parallel.cp() > 1 ? 12 : 1); ++step) {
    const auto batches = make_sharded_batches(*assembly, step);
    report.begin_step();
    step::train_step(*assembly, {batches, step + 1, step * config.train.global_batch_size, false, {}});
  }
  check(*assembly, report.end_step());
}

int64_t microbatches(const step::Assembly& assembly) {
  return assembly.process.config.train.global_batch_size /
         (assembly.process.config.train.micro_batch_size * assembly.process.groups().dp.size());
}

TEST(MemoryRanks, ThePredictionIsWhatARankHolds) {
  for (const MemoryCase& test_case : test::sample_cases(saved_cases(), 2)) {
    SCOPED_TRACE(test_case.name);
    const config::Config config = saved_config(test_case);
    run_sharded(config, test_case.cut, [&](const comm::World& world) {
      measure(config, world, [&](step::Assembly& assembly, const forecast::MeasuredMemory& measured) {
        SCOPED_TRACE(test_case.name + " rank " + std::to_string(world.rank()));
        const replay::MemoryPrediction want = forecast::predicted_memory(assembly.process, microbatches(assembly));
        EXPECT_EQ(measured.use.parameters, want.use.parameters);
        EXPECT_EQ(measured.use.gradients, want.use.gradients);
        EXPECT_EQ(measured.use.main_parameters, want.use.main_parameters);
        EXPECT_EQ(measured.use.moments, want.use.moments);
        EXPECT_EQ(measured.use.host, want.use.host);
        EXPECT_EQ(measured.use.activations, want.use.activations);
        EXPECT_EQ(measured.borders, want.borders);
        EXPECT_EQ(measured.gathered, want.gathered);
        EXPECT_EQ(measured.use.communication, want.use.communication);
      });
    });
  }
}

// The prediction assumes that each rank has the most tokens.
TEST(MemoryRanks, WithASlackOfTokensNoRankHoldsMoreThanPredicted) {
  for (const char* exchange : {"p2p", "all_gather", "a2a"}) {
    const MemoryCase test_case{
        exchange,
        false,
        {1, 1, 1, 4, false},
        base::concat("parallel: {context_parallel_size: 4, context_parallel_cut: balanced,"
                     " context_parallel_token_slack: 0.5, context_parallel_area_slack: 0.5, cp_comm_type: ",
                     exchange, "}\n")};
    const config::Config config = saved_config(test_case);
    run_sharded(config, test_case.cut, [&](const comm::World& world) {
      measure(config, world, [&](step::Assembly& assembly, const forecast::MeasuredMemory& measured) {
        SCOPED_TRACE(base::concat(exchange, " rank ", world.rank()));
        const replay::MemoryPrediction want = forecast::predicted_memory(assembly.process, microbatches(assembly));
        EXPECT_LE(measured.use.activations, want.use.activations);
        EXPECT_GE(static_cast<double>(measured.use.activations), 0.3 * static_cast<double>(want.use.activations));
        EXPECT_LE(measured.peak, want.peak);
      });
    });
  }
}

}  // namespace
}  // namespace metroplex::test::memory_ranks_test
