// Training through static buffers: the bits of an all-to-all, in steps that overflow too, eager and as a graph.
#include <gtest/gtest.h>

#include "moe/load_meter.h"
#include "support/error_of.h"
#include "support/notes.h"
#include "support/poisoned.h"
#include "train/legs.h"
#include "train/small_experts.h"

namespace metroplex::test::static_buffers_ranks_test {
namespace {

// The router's choice is skewed, so that buffers of the even load overflow in every step.
config::Config experts(const std::string& yaml = "") {
  config::Config config = small_experts(", moe_shared_expert_overlap: true, moe_router_force_skew: 1.5", yaml);
  config.train.log_experts_interval = 1;
  return config;
}

struct Grid {
  TestLayout layout;
  int64_t etp = 1, ep = 1;
  const char* sharding = "no_shard";
};
const Grid kGrids[] = {{{.dp = 4}, 1, 4, "optim"},
                       {{.pp = 2, .vpp = 2, .dp = 2}, 1, 2, "no_shard"},
                       {{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 2, 2, "optim_grads_params"}};

std::string words(const Grid& g) {
  return base::concat("tp ", g.layout.tp, " pp ", g.layout.pp, " dp ", g.layout.dp, " etp ", g.etp, " ep ", g.ep);
}

// factor 0: alltoall.
config::Config on(config::Config config, const Grid& grid, double factor, const char* policy = "redo") {
  config.parallel.expert_tensor_parallel_size = grid.etp;
  config.parallel.expert_model_parallel_size = grid.ep;
  config.parallel.data_parallel_sharding_strategy = grid.sharding;
  config.model.moe_token_dispatcher_type = factor > 0 ? "static_buffer" : "alltoall";
  config.model.moe_expert_rank_capacity_factor = factor;
  config.model.moe_overflow_policy = policy;
  return cut(config, grid.layout);
}

struct Ran {
  std::vector<double> losses, norms, evaluated;
  std::vector<std::string> repeated;
  std::vector<at::Tensor> loads;
  State state;
};

Ran train_steps(const config::Config& config, const Grid& grid, int64_t steps = 5) {
  Ran ran;
  run_cut(config, grid.layout, [&](const comm::World& world) {
    const auto a = train::assemble(config, world, kVocab);
    Ran mine;
    for (int64_t step = 0; step < steps; ++step) {
      const train::StepOutcome outcome = step_at(*a, step);
      EXPECT_TRUE(outcome.updated && !outcome.overflow);
      mine.losses.push_back(outcome.loss);
      mine.norms.push_back(outcome.grad_norm);
      mine.repeated.push_back(outcome.repeated);
      for (const auto& [layer, load] : a->experts->meter->layers()) mine.loads.push_back(load.counts.clone());
      auto batches = batches_of(*a, step + 100);
      for (nn::Microbatch& batch : batches) batch.training = false;
      if (step % 2 == 1) mine.evaluated.push_back(train::evaluate_step(*a, batches).mean());
    }
    mine.state = whole_state(*a);
    if (world.rank() == 0) ran = std::move(mine);
  });
  return ran;
}

int64_t times_repeated(const Ran& ran) {
  return std::count_if(ran.repeated.begin(), ran.repeated.end(), [](const std::string& why) { return !why.empty(); });
}

void expect_same_bits(const Ran& got, const Ran& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluated, want.evaluated);
  ASSERT_EQ(got.loads.size(), want.loads.size());
  for (size_t i = 0; i < want.loads.size(); ++i) EXPECT_TRUE(got.loads[i].equal(want.loads[i])) << i;
  ASSERT_EQ(got.state.size(), want.state.size());
  for (const auto& [name, values] : want.state) EXPECT_TRUE(at::equal(got.state.at(name), values)) << name;
}

const char* const kForms[] = {"",
                              "memory: {recompute_granularity: full, recompute_method: uniform,"
                              " recompute_num_layers: 1}\n",
                              "precision: {params_dtype: bf16}\n"};

TEST(StaticBuffers, TrainWithTheBitsOfAnAllToAllWhetherOrNotTheyOverflow) {
  const Poisoned poisoned;
  for (const Grid& grid : kGrids) {
    for (const char* form : kForms) {
      const Ran want = train_steps(on(experts(form), grid, 0), grid);
      for (const double factor : {1.0, 1.6, static_cast<double>(grid.ep)}) {
        SCOPED_TRACE(words(grid) + " " + form + base::concat(" factor ", factor));
        const Ran got = train_steps(on(experts(form), grid, factor), grid);
        expect_same_bits(got, want);
        if (factor == 1) { EXPECT_EQ(times_repeated(got), 5); }
        if (factor == static_cast<double>(grid.ep)) { EXPECT_EQ(times_repeated(got), 0); }
      }
    }
  }
}

// The graph is replayed where rows find room; a step that overflows runs again beside it, and so does an evaluation.
TEST(StaticBuffers, AreCapturedWithTheStep) {
  for (const Grid& grid : kGrids) {
    const Ran want = train_steps(on(experts(), grid, 0), grid, 7);
    for (const double factor : {1.0, 2.2, static_cast<double>(grid.ep)}) {
      SCOPED_TRACE(words(grid) + base::concat(" factor ", factor));
      config::Config config = on(experts(), grid, factor);
      config.train.cuda_graph_impl = config::CudaGraphImpl::full_iteration;
      config.train.cuda_graph_warmup_steps = 1;
      expect_same_bits(train_steps(config, grid, 7), want);
    }
  }
}

// Without force there are steps that overflow and steps that do not, and the run stays the same.
TEST(StaticBuffers, SomeStepsOverflowAndOthersDoNot) {
  const Grid& grid = kGrids[0];
  config::Config config = experts();
  config.model.moe_router_force_skew = 0;
  const Ran want = train_steps(on(config, grid, 0), grid, 12), got = train_steps(on(config, grid, 1.35), grid, 12);
  expect_same_bits(got, want);
  EXPECT_GT(times_repeated(got), 0);
  EXPECT_LT(times_repeated(got), 12) << "choose another factor";
}

// Neither a step nor an evaluation.
TEST(StaticBuffers, StopNamesLayerRankRowsAndFactorOnEveryRank) {
  const Grid& grid = kGrids[0];
  const config::Config config = on(experts(), grid, 1, "stop");
  run_cut(config, grid.layout, [&](const comm::World& world) {
    const auto a = train::assemble(config, world, kVocab);
    const State before = whole_state(*a);
    const std::string said = error_of([&] { step_at(*a, 0); });
    for (const char* part : {"layer ", " rows for rank ", " of ep, which has room for ",
                             "model.moe_expert_rank_capacity_factor = 1", "raise it to ", "moe_overflow_policy"})
      expect_contains(said, part);
    a->families.settle();
    const State after = whole_state(*a);
    for (const auto& [name, values] : before) EXPECT_TRUE(at::equal(after.at(name), values)) << name;
  });
}

TEST(StaticBuffers, DropTrainsOnWithoutTheRowsThatFindNoRoom) {
  const Grid& grid = kGrids[0];
  const Ran want = train_steps(on(experts(), grid, 0), grid), got = train_steps(on(experts(), grid, 1, "drop"), grid),
            roomy = train_steps(on(experts(), grid, 4, "drop"), grid);
  EXPECT_EQ(times_repeated(got), 0);
  EXPECT_NE(got.losses, want.losses);
  for (const double loss : got.losses) EXPECT_TRUE(std::isfinite(loss));
  expect_same_bits(roomy, want);
}

}  // namespace
}  // namespace metroplex::test::static_buffers_ranks_test
