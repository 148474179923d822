// A layer of experts with replicas as a CUDA graph. The capture includes sending the weights and returning their
// gradients to the owner.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "moe/experts_layer.h"
#include "moe/load_meter.h"
#include "nn/tools.h"
#include "pipeline/stage.h"
#include "support/run_ranks.h"

namespace metroplex::test::replicas_graphs_ranks_test {
namespace {

constexpr int64_t kHidden = 12, kSequence = 20, kSamples = 2;

config::Config two_ranks_of_experts() {
  config::Config config;
  config.parallel.expert_tensor_parallel_size = 1;
  config.parallel.expert_model_parallel_size = 2;
  config::Model& m = config.model;
  m.num_layers = 1;
  m.hidden_size = kHidden;
  m.num_moe_experts = 4;
  m.moe_router_topk = 2;
  m.moe_ffn_hidden_size = 10;
  m.add_bias_linear = true;
  m.hidden_dropout = 0;
  m.moe_router_force_skew = 1.5;
  m.moe_token_dispatcher_type = config::TokenDispatcher::static_buffer;  // reads nothing on the host
  m.moe_expert_rank_capacity_factor = 1;
  m.moe_enable_echo = true;
  m.moe_num_echo_experts = 4;
  m.moe_echo_planner = config::EchoPlanner::exact;
  return config;
}

nn::Blocks make_replica_layer(const comm::World& world, std::shared_ptr<moe::LoadMeter> meter = nullptr) {
  const config::Config config = two_ranks_of_experts();
  nn::LayerContext context = layer_context();
  context.target = world.target();
  moe::ExpertContext experts = moe::expert_context(world, config);
  experts.meter = std::move(meter);
  const moe::ExpertsLayerSpec spec{"layer.mlp", 0, {"layer.norm", kHidden}};
  const auto layer = std::make_shared<moe::ExpertsLayer>(spec, config.model, context, experts);
  nn::Blocks blocks(1);
  blocks[0].is_layer = true;
  moe::add_expert_segments(blocks[0], layer, config.model, context);
  nn::count_uses({&blocks});
  give_main_grad(nn::list_params(blocks));
  return blocks;
}

// Outputs, input gradients and accumulated parameter gradients of three microbatches in sequence.
std::vector<at::Tensor> run(
    pipeline::Stage& stage, int rank, int live_set, const std::function<void()>& after_each = [] {}) {
  std::vector<at::Tensor> all;
  for (uint64_t i = 0; i < 3; ++i) {
    nn::Microbatch batch;
    batch.counters.samples = at::arange(kSamples, at::kLong).add_(static_cast<int64_t>(10 * i) + 100 * rank);
    batch.tokens = at::zeros({kSamples, kSequence}, at::kLong);
    batch.loss_mask = at::ones({kSamples, kSequence}, at::kDouble);
    const uint64_t seed = 7 * static_cast<uint64_t>(rank) + i;
    pipeline::StageRun run;
    nn::LossTerms terms;
    const nn::Values y = stage.forward({nn::kHiddenStates, sample({kSequence, kSamples, kHidden}, seed)}, batch, &run,
                                       &terms, live_set);
    all.push_back(y.tensor(nn::kHiddenStates).clone());
    const at::Tensor dy = sample({kSequence, kSamples, kHidden}, seed + 50);
    for (const at::Tensor& dx : stage.backward(std::move(run), {dy}, {})) all.push_back(dx.clone());
    for (const nn::Param* param : stage.params()) all.push_back(param->main_grad.clone());
    after_each();
  }
  return all;
}

TEST(ClonesInGraphs, HaveTheBitsOfClonesThatRunEagerly) {
  comm::run_threads(2, topology::RankGrid(2, two_ranks_of_experts().parallel), {}, [](const comm::World& world) {
    pipeline::Stage eager(make_replica_layer(world));
    const std::vector<at::Tensor> expected = run(eager, world.rank(), -1);
    const auto device = graph::make_graph_device(at::kCPU);
    const comm::World recorded = world.recorded(*device->recorder());
    pipeline::Stage stage(make_replica_layer(recorded));
    const auto instances = std::make_shared<pipeline::GraphInstances>(*device, at::kCPU);
    stage.enable_capture(instances, {{}, true});
    const std::vector<at::Tensor> got = run(stage, world.rank(), 0);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
    EXPECT_EQ(instances->sizes(false).graphs, 2) << "a forward and a backward";
  });
}

TEST(ClonesInGraphs, AddTheTimesOfEveryReplay) {
  comm::run_threads(2, topology::RankGrid(2, two_ranks_of_experts().parallel), {}, [](const comm::World& world) {
    const auto device = graph::make_graph_device(at::kCPU);
    const comm::World recorded = world.recorded(*device->recorder());
    const auto meter = std::make_shared<moe::LoadMeter>(4, recorded.target());
    pipeline::Stage stage(make_replica_layer(recorded, meter));
    stage.enable_capture(std::make_shared<pipeline::GraphInstances>(*device, at::kCPU), {{}, true});
    double dispatch = 0, combine = 0;
    run(stage, world.rank(), 0, [&] {
      const moe::LoadMeter::Layer& layer = meter->layer(0);
      EXPECT_GT(layer.dispatch_ms, dispatch);
      EXPECT_GT(layer.combine_ms, combine);
      dispatch = layer.dispatch_ms, combine = layer.combine_ms;
    });
  });
}

}  // namespace
}  // namespace metroplex::test::replicas_graphs_ranks_test
