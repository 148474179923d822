// Training with static buffers: the bits of all-to-all, also in steps that overflow, eager and as a graph.
#include <gtest/gtest.h>

#include "support/error_of.h"
#include "support/notes.h"
#include "support/poisoned.h"
#include "run/expert_runs.h"

namespace metroplex::test::static_buffers_ranks_test {
namespace {

const ExpertGrid kGrids[] = {{{.dp = 4}, 1, 4, "optim"},
                             {{.pp = 2, .vpp = 2, .dp = 2}, 1, 2, "no_shard"},
                             {{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 2, 2, "optim_grads_params"}};

// factor 0: alltoall.
config::Config on(const ExpertGrid& grid, double factor, const std::string& yaml = "", const char* policy = "redo") {
  config::Config config = skewed_experts(grid, factor, yaml);
  config.model.moe_overflow_policy = policy;
  return cut(config, grid.layout);
}

const char* const kForms[] = {"",
                              "memory: {recompute_granularity: full, recompute_method: uniform,"
                              " recompute_num_layers: 1}\n",
                              "precision: {params_dtype: bf16}\n"};

TEST(StaticBuffers, TrainWithTheBitsOfAnAllToAllWhetherOrNotTheyOverflow) {
  const NanFillGuard poisoned;
  for (const ExpertGrid& grid : kGrids) {
    for (const char* form : kForms) {
      const ExpertRun want = train_steps(on(grid, 0, form), grid, 5);
      for (const double factor : {1.0, 1.6, static_cast<double>(grid.ep)}) {
        SCOPED_TRACE(words(grid) + " " + form + base::concat(" factor ", factor));
        const ExpertRun got = train_steps(on(grid, factor, form), grid, 5);
        expect_same_bits(got, want);
        if (factor == 1) { EXPECT_EQ(got.times_repeated(), 5); }
        if (factor == static_cast<double>(grid.ep)) { EXPECT_EQ(got.times_repeated(), 0); }
      }
    }
  }
}

// The graph is replayed if the rows fit; an overflowing step or evaluation runs again eagerly.
TEST(StaticBuffers, AreCapturedWithTheStep) {
  for (const ExpertGrid& grid : kGrids) {
    const ExpertRun want = train_steps(on(grid, 0), grid, 7);
    for (const double factor : {1.0, 2.2, static_cast<double>(grid.ep)}) {
      SCOPED_TRACE(words(grid) + base::concat(" factor ", factor));
      config::Config config = on(grid, factor);
      config.train.cuda_graph_impl = config::CudaGraphImpl::full_iteration;
      config.train.cuda_graph_warmup_steps = 1;
      expect_same_bits(train_steps(config, grid, 7), want);
      if (factor != 2.2) continue;
      // Recompute samples the same dropout and jitter.
      config.memory.recompute_granularity = config::Recompute::full;
      config.memory.recompute_method = "uniform";
      config.memory.recompute_num_layers = 1;
      expect_same_bits(train_steps(config, grid, 7), want);
      config.memory.recompute_granularity = config::Recompute::selective;
      config.memory.recompute_method = config::RecomputeMethod::none;
      config.memory.recompute_num_layers = 0;
      config.memory.recompute_modules = {"moe_act", "core_attn", "layernorm"};
      expect_same_bits(train_steps(config, grid, 7), want);
    }
  }
}

// Without a forced routing some steps overflow and some do not, and the run stays the same.
TEST(StaticBuffers, SomeStepsOverflowAndOthersDoNot) {
  const ExpertGrid& grid = kGrids[0];
  const auto unforced = [&](double factor) {
    config::Config config = on(grid, factor);
    config.model.moe_router_force_skew = 0;
    return config;
  };
  const ExpertRun want = train_steps(unforced(0), grid, 12), got = train_steps(unforced(1.35), grid, 12);
  expect_same_bits(got, want);
  EXPECT_GT(got.times_repeated(), 0);
  EXPECT_LT(got.times_repeated(), 12) << "choose another factor";
}

// In a step and in an evaluation.
TEST(StaticBuffers, StopNamesLayerRankRowsAndFactorOnEveryRank) {
  const ExpertGrid& grid = kGrids[0];
  const config::Config config = on(grid, 1, "", "stop");
  run_sharded(config, grid.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const State before = whole_state(*assembly);
    const std::string said = catch_error([&] { step_at(*assembly, 0); });
    for (const char* part : {"layer ", " rows for rank ", " of ep, whose capacity is ",
                             "model.moe_expert_rank_capacity_factor = 1", "raise it to ", "moe_overflow_policy"})
      expect_contains(said, part);
    assembly->model.families.finish_gathers();
    const State after = whole_state(*assembly);
    for (const auto& [name, values] : before) EXPECT_TRUE(at::equal(after.at(name), values)) << name;
  });
}

// The buffers fit all rows, but one rank alone exceeds the capacity of a pair.
TEST(StaticBuffers, StopNamesTheCapacityOfAPair) {
  const ExpertGrid& grid = kGrids[0];
  config::Config config = on(grid, 4, "", "stop");
  config.model.moe_rank_pair_capacity_factor = 1;
  run_sharded(config, grid.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const std::string said = catch_error([&] { step_at(*assembly, 0); });
    for (const char* part : {"from one rank to another", "model.moe_rank_pair_capacity_factor = 1", "raise it"})
      expect_contains(said, part);
  });
}

TEST(StaticBuffers, DropTrainsOnWithoutTheRowsThatFindNoRoom) {
  const ExpertGrid& grid = kGrids[0];
  const ExpertRun want = train_steps(on(grid, 0), grid, 5), got = train_steps(on(grid, 1, "", "drop"), grid, 5),
                  roomy = train_steps(on(grid, 4, "", "drop"), grid, 5);
  EXPECT_EQ(got.times_repeated(), 0);
  EXPECT_NE(got.losses, want.losses);
  for (const double loss : got.losses) EXPECT_TRUE(std::isfinite(loss));
  expect_same_bits(roomy, want);
}

}  // namespace
}  // namespace metroplex::test::static_buffers_ranks_test
