// The whole step as one graph on the CPU: the bits of steps that run as they are, on every layout.
#include <gtest/gtest.h>

#include "train/step_graphs.h"
#include "train/support.h"

namespace metroplex {
namespace {

using test::TestLayout;

struct Ran {
  std::vector<double> losses, norms;
  std::vector<double> evaluated;
  std::map<std::string, at::Tensor> state;  // rank 0's
};

Ran train_steps(const config::Config& config, const TestLayout& layout, int64_t steps) {
  Ran ran;
  test::run_cut(config, layout, [&](const comm::World& world) {
    const auto a = train::assemble(config, world, test::kVocab);
    Ran mine;
    for (int64_t step = 0; step < steps; ++step) {
      const train::StepOutcome outcome = test::step_at(*a, step);
      mine.losses.push_back(outcome.loss);
      mine.norms.push_back(outcome.grad_norm);
      if (step % 2 == 1) mine.evaluated.push_back(train::evaluate_step(*a, test::batches_of(*a, step + 100)).mean());
    }
    mine.state = test::whole_state(*a);
    if (world.rank() == 0) ran = std::move(mine);
  });
  return ran;
}

void expect_same_bits(const Ran& graph, const Ran& eager) {
  EXPECT_EQ(graph.losses, eager.losses);
  EXPECT_EQ(graph.norms, eager.norms);
  EXPECT_EQ(graph.evaluated, eager.evaluated);
  ASSERT_EQ(graph.state.size(), eager.state.size());
  for (const auto& [name, values] : eager.state) EXPECT_TRUE(at::equal(graph.state.at(name), values)) << name;
}

config::Config with_graphs(config::Config config) {
  config.train.cuda_graph_impl = config::CudaGraphImpl::full_iteration;
  config.train.cuda_graph_warmup_steps = 2;
  return config;
}

TEST(StepGraphs, OneRankHasTheBitsOfStepsWithoutThem) {
  const config::Config config = test::cut(test::small_gpt(), {});
  expect_same_bits(train_steps(with_graphs(config), {}, 8), train_steps(config, {}, 8));
}

TEST(StepGraphs, LayoutsHaveTheBitsOfStepsWithoutThem) {
  for (const TestLayout& layout : std::vector<TestLayout>{{2, 1, 1, 1, false},
                                                          {2, 1, 1, 1, true},
                                                          {1, 2, 1, 1, false},
                                                          {1, 2, 2, 1, false},
                                                          {1, 1, 1, 2, false},
                                                          {2, 2, 2, 2, true}}) {
    for (const char* sharding : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
      SCOPED_TRACE(::testing::Message() << layout.tp << layout.pp << layout.vpp << layout.dp << layout.sp
                                        << sharding);
      if (layout.dp == 1 && std::string(sharding) != "no_shard") continue;
      config::Config config = test::small_gpt();
      config.parallel.data_parallel_sharding_strategy = sharding;
      config = test::cut(config, layout);
      expect_same_bits(train_steps(with_graphs(config), layout, 6), train_steps(config, layout, 6));
    }
  }
}

}  // namespace
}  // namespace metroplex
