// A few layouts on real processes over gloo equal one rank in float64. layouts_ranks_test.cpp and zero_ranks_test.cpp
// sweep all layouts on threads.
#include "support/run_processes.h"
#include "run/support.h"
#include "verify/verify.h"

namespace metroplex::test::layouts_procs_test {
namespace {

using verify::LayoutRun;

struct Processes {
  TestLayout cut;
  const char* strategy = "no_shard";
};

config::Config make_config(const config::Config& base, const Processes& how) {
  config::Config config = verify::verification_config(base, 3);
  config.parallel.data_parallel_sharding_strategy = how.strategy;
  return cut(config, how.cut);
}

LayoutRun on_one_rank(const config::Config& base) {
  LayoutRun run;
  const config::Config config = make_config(base, {});
  run_sharded(config, {}, [&](const comm::World& world) { run = verify::run_layout(config, world, kVocab, 3); });
  return run;
}

// Rank 0 holds the full parameters and compares; all ranks have the losses.
void expect_equal_to_one_rank(const config::Config& base, const Processes& how) {
  const config::Config config = make_config(base, how);
  const Layout layout{.tp = static_cast<int>(how.cut.tp),
                      .pp = static_cast<int>(how.cut.pp),
                      .dp = static_cast<int>(how.cut.dp),
                      .vpp = static_cast<int>(how.cut.vpp)};
  run_processes_well(static_cast<int>(how.cut.ranks()), layout, [&](const comm::World& world) {
    LayoutRun run = verify::run_layout(config, world, kVocab, 3);
    LayoutRun reference = on_one_rank(base);
    EXPECT_NE(reference.losses.front(), reference.losses.back());
    if (world.rank() != 0) {
      EXPECT_TRUE(run.params.empty());
      reference.params.clear();
    }
    const verify::LayoutDifference difference = verify::compare_runs(run, reference);
    EXPECT_LE(difference.loss, verify::kLossTolerance);
    EXPECT_LE(difference.grad_norm, verify::kGradNormTolerance);
    EXPECT_LE(difference.parameter, verify::kParameterTolerance) << difference.parameter_name;
  });
}

config::Config for_pipeline(config::Config config) {
  config.model.num_layers = 6;
  config.train.global_batch_size = 6;
  return config;
}

TEST(GlooLayouts, TensorAndSequenceParallelEqualOneRank) {
  expect_equal_to_one_rank(small_llama(), {{2, 1, 1, 1, true}});
}

TEST(GlooLayouts, ThreeInterleavedStagesOfACodegeexEqualOneRank) {
  config::Config config = for_pipeline(small_gpt());
  config.model.family = "codegeex";
  expect_equal_to_one_rank(config, {{1, 3, 2, 1, false}});
}

TEST(GlooLayouts, Zero1OverThreeRanksEqualsOneRank) {
  expect_equal_to_one_rank(for_pipeline(small_gpt()), {{1, 1, 1, 3, false}, "optim"});
}

TEST(GlooLayouts, Zero3WithTwoStagesEqualsOneRank) {
  expect_equal_to_one_rank(small_gpt(), {{1, 2, 1, 2, false}, "optim_grads_params"});
}

}  // namespace
}  // namespace metroplex::test::layouts_procs_test
