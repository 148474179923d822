// Parts of layers as graphs on the CPU: the bits of steps that run as they are, on every layout, and as many graphs
// as are planned.
#include "train/partial_graphs.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "train/support.h"

namespace metroplex {
namespace {

using config::CudaGraphImpl;
using test::TestLayout;
using Modules = std::vector<std::string>;

constexpr int64_t kWarmup = 2;

struct Ran {
  std::vector<double> losses, norms, evaluated;
  std::map<std::string, at::Tensor> state;  // rank 0's
  train::PartialGraphs::Sizes sizes;        // likewise
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
    if (a->partial_graphs) {
      mine.sizes = a->partial_graphs->sizes();
      EXPECT_EQ(mine.sizes.training.graphs, mine.sizes.planned);
      EXPECT_EQ(mine.sizes.training.pools.live, 0) << "something of a step is still held";
    }
    if (world.rank() == 0) ran = std::move(mine);
  });
  return ran;
}

void expect_same_bits(const Ran& graph, const Ran& eager) {
  EXPECT_EQ(graph.losses, eager.losses);
  EXPECT_EQ(graph.norms, eager.norms);
  EXPECT_EQ(graph.evaluated, eager.evaluated);
  test::expect_equal_state(graph.state, eager.state);
  EXPECT_GT(graph.sizes.training.graphs, 0);
  EXPECT_GT(graph.sizes.training.size.nodes, 0);
}

config::Config with_graphs(config::Config config, CudaGraphImpl impl, const Modules& modules) {
  config.train.cuda_graph_impl = impl;
  config.train.cuda_graph_modules = modules;
  config.train.cuda_graph_warmup_steps = kWarmup;
  return config;
}

std::string text_of(const Modules& modules) {
  std::string text;
  for (const std::string& module : modules) text += module + " ";
  return text.empty() ? "whole layers" : text;
}

const std::vector<Modules> kScopes{{"attn"}, {"mlp"}, {"attn", "mlp"}, {}};

TEST(PartialGraphs, EveryScopeHasTheBitsOfStepsWithoutGraphs) {
  const config::Config config = test::small_gpt();
  const Ran eager = train_steps(test::cut(config, {}), {}, 7);
  for (const CudaGraphImpl impl : {CudaGraphImpl::local, CudaGraphImpl::transformer_engine}) {
    for (const Modules& modules : kScopes) {
      SCOPED_TRACE(::testing::Message() << config::text_of(impl) << " " << text_of(modules));
      const Ran graph = train_steps(test::cut(with_graphs(config, impl, modules), {}), {}, 7);
      expect_same_bits(graph, eager);
      // One rank holds one microbatch at a time.
      EXPECT_EQ(graph.sizes.training.graphs, 2 * config.model.num_layers);
      EXPECT_EQ(graph.sizes.evaluation.graphs, impl == CudaGraphImpl::local ? config.model.num_layers : 0);
    }
  }
}

TEST(PartialGraphs, LayoutsHaveTheBitsOfStepsWithoutThem) {
  size_t next = 0;
  for (const TestLayout& layout : std::vector<TestLayout>{{2, 1, 1, 1, false},
                                                          {2, 1, 1, 1, true},
                                                          {4, 1, 1, 1, true},
                                                          {1, 2, 1, 1, false},
                                                          {1, 4, 1, 1, false},
                                                          {1, 2, 2, 1, false},
                                                          {1, 1, 1, 2, false},
                                                          {1, 2, 1, 2, false},
                                                          {2, 2, 2, 2, true}}) {
    for (const char* sharding : {"no_shard", "optim"}) {
      if (layout.dp == 1 && std::string(sharding) != "no_shard") continue;
      config::Config config = test::small_gpt();
      config.parallel.data_parallel_sharding_strategy = sharding;
      const Ran eager = train_steps(test::cut(config, layout), layout, 6);
      for (const Modules& modules : kScopes) {
        const CudaGraphImpl impl = next++ % 2 == 0 ? CudaGraphImpl::local : CudaGraphImpl::transformer_engine;
        SCOPED_TRACE(::testing::Message()
                     << "tp" << layout.tp << " pp" << layout.pp << " vpp" << layout.vpp << " dp" << layout.dp << " sp"
                     << layout.sp << " " << sharding << " " << config::text_of(impl) << " " << text_of(modules));
        expect_same_bits(train_steps(test::cut(with_graphs(config, impl, modules), layout), layout, 6), eager);
      }
    }
  }
}

}  // namespace
}  // namespace metroplex
