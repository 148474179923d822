// Runs an expert layer, with or without replicas, on ranks that are threads, and collects the results.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "moe/experts_layer.h"
#include "nn/region.h"
#include "nn/tools.h"
#include "support/run_ranks.h"

namespace metroplex::test::echo_layer {

using config::EchoPlanner;
using config::TokenDispatcher;

inline constexpr int64_t kHidden = 12, kSequence = 20, kSamples = 2;

struct Case {
  int ranks, etp;
  int64_t experts;
  int slots;
  int ep() const { return ranks / etp; }
  std::string text() const {
    return base::concat(ranks, " ranks, etp ", etp, ", ", experts, " experts, ", slots, " slots");
  }
};
inline const Case kCases[] = {{2, 1, 4, 1}, {2, 1, 4, 2}, {4, 1, 8, 2}, {4, 2, 6, 1}, {8, 2, 8, 3}, {3, 1, 3, 1}};

struct Form {
  EchoPlanner planner = EchoPlanner::capfill;
  TokenDispatcher rows = TokenDispatcher::alltoall;
  double room = 0;  // capacity factor for static buffers (moe_expert_rank_capacity_factor)
  bool bias = false, grouped = true, random = false, recomputes = false, one_region = true, fetches_again = false,
       overlaps = true;
  at::ScalarType type = at::kDouble;
  std::string text() const {
    return base::concat(config::text_of(planner), ", ", config::text_of(rows), bias ? ", bias" : "",
                        grouped ? "" : ", one by one", random ? ", random" : "", recomputes ? ", recomputed" : "",
                        fetches_again ? ", fetched again" : "", overlaps ? "" : ", no overlap",
                        one_region ? "" : ", islands", ", ", at::toString(type));
  }
};

inline config::Config make_config(const Case& test_case, const Form& form, bool replicas) {
  config::Config config;
  config.parallel.expert_tensor_parallel_size = test_case.etp;
  config.parallel.expert_model_parallel_size = test_case.ep();
  config::Model& m = config.model;
  m.num_layers = 1;
  m.hidden_size = kHidden;
  m.num_moe_experts = test_case.experts;
  m.moe_router_topk = 2;
  m.moe_ffn_hidden_size = 10;
  m.gated_linear_unit = true;
  m.activation = config::Activation::silu;
  m.add_bias_linear = form.bias;
  m.moe_grouped_gemm = form.grouped;
  m.hidden_dropout = 0;
  m.moe_router_force_skew = 1.2;
  m.moe_token_dispatcher_type = form.rows;
  m.moe_expert_rank_capacity_factor = form.room;
  m.moe_enable_echo = replicas;
  m.moe_num_echo_experts = replicas ? test_case.slots * test_case.ep() : 0;
  m.moe_echo_planner = form.planner;
  m.moe_echo_enable_random_offloading = replicas && form.random;
  m.moe_echo_recompute_expert_dispatch = replicas && form.fetches_again;
  m.moe_echo_expert_dispatch_overlap = !replicas || form.overlaps;
  return config;
}

struct Layer {
  // rms: RMSNorm without epsilon. `recorder` receives the layer's operations and must outlive it.
  Layer(const config::Config& config, const comm::World& world, at::ScalarType type, bool rms = false,
        device::Recorder* recorder = nullptr) {
    nn::LayerContext context = layer_context({}, false, type);
    context.target.recorder = recorder;
    const moe::ExpertsLayerSpec spec{"layer.mlp", 3, {"layer.norm", kHidden, rms, rms ? 0 : 1e-5}};
    moe::ExpertContext experts = moe::expert_context(world, config);
    if (recorder != nullptr) {
      experts.experts = experts.experts.recorded(*recorder);
      experts.replicas = experts.replicas.recorded(*recorder);
    }
    experts.on_replica_plan = [this](int64_t number, const moe::ReplicaPlan& plan) {
      EXPECT_EQ(number, 3);
      plans.push_back(plan);
    };
    layer = std::make_shared<moe::ExpertsLayer>(spec, config.model, context, experts);
    blocks.resize(1);
    moe::add_expert_segments(blocks[0], layer, config.model, context);
    params = nn::list_params(blocks);
    nn::count_uses({&blocks});
    for (nn::Param* param : params) {
      // Zero biases would hide an omitted bias.
      if (param->init != nn::Init::zeros) continue;
      nn::fill(*param, [](int64_t i) { return 0.3 * std::sin(0.7 * static_cast<double>(i) + 0.2); });
    }
    give_main_grad(params);
  }
  std::shared_ptr<moe::ExpertsLayer> layer;
  std::vector<moe::ReplicaPlan> plans;  // one per forward pass, excluding recomputation
  nn::Blocks blocks;
  std::vector<nn::Param*> params;
};

inline std::vector<nn::Region> make_regions(const nn::Block& block, bool one) {
  if (one) return {nn::make_region(block)};
  std::vector<nn::Region> regions;
  for (const auto& segment : block.segments) regions.push_back(nn::make_region({segment.get()}));
  return regions;
}

struct Results {
  std::map<std::string, at::Tensor> tensors;
  int64_t replicated_rows = 0;  // of this rank, over the microbatches
};

inline nn::Microbatch batch_of(uint64_t microbatch, int rank) {
  nn::Microbatch batch;
  batch.tokens = at::zeros({kSamples, kSequence}, at::kLong);
  batch.loss_mask = at::ones({kSamples, kSequence}, at::kDouble);
  batch.counters.samples = at::arange(kSamples, at::kLong).add_(static_cast<int64_t>(10 * microbatch) + 100 * rank);
  return batch;
}

using Values = at::Tensor(const at::Tensor&);
inline at::Tensor as_drawn(const at::Tensor& x) { return x; }

inline Results run(Layer& layer, const Case& test_case, const Form& form, const comm::World& world,
                   Values* values = as_drawn) {
  const std::vector<nn::Region> regions = make_regions(layer.blocks[0], form.one_region);
  Results results;
  for (uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
    const nn::Microbatch batch = batch_of(microbatch, world.rank());
    const uint64_t seed = 10 + 2 * static_cast<uint64_t>(world.rank()) + microbatch;
    const nn::Values in(nn::kHiddenStates, values(sample({kSequence, kSamples, kHidden}, seed, form.type)));
    nn::Values x = in;
    std::vector<nn::RegionRun> runs(regions.size());
    if (form.recomputes) {
      for (const nn::Region& region : regions) x = nn::run_forward(region, x, {batch}, nullptr);
      x = in;
    }
    for (size_t i = 0; i < regions.size(); ++i) {
      x = nn::run_forward(regions[i], x, {batch, nullptr, nullptr, form.recomputes}, &runs[i]);
      const moe::LayerValues passed = moe::from_values(x, /*topk=*/1);
      if (passed.replicas.defined()) {
        const at::Tensor& counts = passed.rows.counts;
        const int64_t home = test_case.experts / test_case.ep();
        const at::Tensor replicated = counts.narrow(0, home, test_case.slots);
        const at::Tensor planned = layer.plans.back().source_rows.sum(0).narrow(
            0, world.rank() / test_case.etp * test_case.slots, test_case.slots);
        EXPECT_TRUE(at::equal(replicated, planned)) << replicated << " rows received, not " << planned;
        results.replicated_rows += replicated.sum().item<int64_t>();
      }
    }
    const std::string number = std::to_string(microbatch);
    results.tensors["y " + number] = x.tensor(nn::kHiddenStates);
    nn::Gradients dy{values(sample({kSequence, kSamples, kHidden}, seed + 77, form.type))};
    for (size_t i = regions.size(); i-- > 0;) dy = nn::run_backward(std::move(runs[i]), dy, {});
    results.tensors["dx " + number] = dy.at(0);
  }
  for (const nn::Param* param : layer.params) {
    results.tensors[param->name] = param->main_grad;
    EXPECT_EQ(param->microbatch_uses, 0) << param->name;
  }
  return results;
}

}  // namespace metroplex::test::echo_layer
