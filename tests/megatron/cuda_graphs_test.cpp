// Graph capture as Megatron's TransformerConfig accepts it, in addition to the recorded cases: each assertion without
// a recorded case, from both sides. These cases follow Megatron's source.
#include "megatron/cuda_graphs.h"

#include <functional>

#include <gtest/gtest.h>

#include "config/validate.h"
#include "megatron/oracle/transformer_config.h"

namespace metroplex::megatron::cuda_graphs_test {

namespace {

using Words = std::vector<std::string>;
using Change = std::function<void(TransformerConfig&)>;

TransformerConfig dense(const std::string& impl, const Words& modules) {
  TransformerConfig config;
  config.num_layers = 4;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.cuda_graphs.impl = impl;
  config.cuda_graphs.modules = modules;
  return config;
}

TransformerConfig experts(const std::string& impl, const Words& modules) {
  TransformerConfig config = dense(impl, modules);
  config.experts.num_moe_experts = 4;
  config.add_bias_linear = false;
  return config;
}

TransformerConfig changed(TransformerConfig config, const Change& change) {
  change(config);
  return config;
}

TransformerConfig recomputing(TransformerConfig config, const Words& modules) {
  config.recompute_granularity = "selective";
  config.recompute_modules = modules;
  return config;
}

TransformerConfig offloading(TransformerConfig config, const Words& modules) {
  config.fine_grained_activation_offloading = true;
  config.offload_modules = modules;
  return config;
}

void expect(const TransformerConfig& config, bool accepted, const char* what) {
  const auto found = violations(config);
  EXPECT_EQ(found.empty(), accepted) << what << "\n" << (found.empty() ? "" : config::message(found));
}

}  // namespace

TEST(CudaGraphOracle, KnowsWhatExpertsAndTheirCapacityAllow) {
  const auto drops = [](TransformerConfig& config) { config.experts.capacity_factor = 1.0; };
  const auto pads = [](TransformerConfig& config) {
    config.experts.capacity_factor = 1.0;
    config.experts.pad_to_capacity = true;
  };
  const auto sends = [](TransformerConfig& config) {
    config.experts.dispatcher = "alltoall";
    config.experts.capacity_factor = 1.0;
  };
  const std::string te = "transformer_engine";
  expect(experts(te, {"attn", "moe_router", "moe_preprocess"}), true, "seed 002's modules");
  expect(experts(te, {"attn", "moe_router"}), true, "without preprocessing");
  expect(experts("local", {"moe_preprocess"}), true, "which local adds the router to");
  expect(dense(te, {"moe_router"}), false, "a router of a dense model");
  expect(dense("local", {"moe_preprocess"}), false, "which local adds the router to");
  expect(dense(te, {"mamba"}), true, "a module that no layer has");
  expect(experts(te, {"mlp"}), false, "mlp without dense layers");
  expect(changed(experts(te, {"mlp"}), [](auto& c) { c.experts.some_layers_dense = true; }), true, "with some");
  expect(changed(experts(te, {"moe"}), drops), false, "moe that drops without padding");
  expect(changed(experts(te, {"moe"}), pads), true, "moe that pads");
  expect(changed(experts(te, {"moe", "moe_router"}), pads), false, "moe and a part of it");
  expect(changed(experts("local", {"moe", "moe_preprocess"}), pads), false, "the same, by what local adds");
  expect(changed(experts(te, {"moe_router", "moe_preprocess"}), sends), false, "counts copied to the host");
  expect(changed(experts(te, {"moe_router"}), sends), true, "nothing of which is captured");
  expect(changed(experts(te, {"moe_router", "moe_preprocess"}), drops), true, "allgather copies none");
  expect(experts("full_iteration", {}), true, "dropless experts, which TransformerConfig lets pass");
  expect(experts("none", {"moe", "moe_router"}), true, "what has no effect");
}

TEST(CudaGraphOracle, KnowsWhatRecomputeAllows) {
  const auto still = [](TransformerConfig& config) { config.attention_dropout = config.hidden_dropout = 0; };
  const auto jitter = [](TransformerConfig& config) {
    config.hidden_dropout = 0;
    config.expert_options.input_jitter = true;
  };
  const auto layers = [](TransformerConfig& config) { config.expert_options.layer_recompute = true; };
  expect(recomputing(dense("local", {}), {"core_attn"}), false, "dropout in a whole layer");
  expect(recomputing(dense("full_iteration", {}), {"core_attn"}), false, "dropout in a whole step");
  expect(recomputing(dense("none", {}), {"core_attn"}), true, "no graph");
  expect(recomputing(dense("local", {"attn"}), {"core_attn"}), false, "dropout in attention");
  expect(recomputing(dense("local", {"mlp"}), {"core_attn"}), true, "attention that is not captured");
  expect(recomputing(dense("local", {"mlp"}), {"mlp"}), false, "dropout in a dense part");
  expect(recomputing(dense("local", {"attn"}), {"mlp"}), true, "a dense part that is not captured");
  expect(recomputing(dense("local", {}), {"layernorm"}), true, "what draws nothing");
  expect(changed(recomputing(dense("local", {}), {"core_attn", "mlp"}), still), true, "no dropout");
  expect(changed(recomputing(experts("local", {}), {"moe"}), still), true, "experts without dropout");
  expect(recomputing(experts("local", {}), {"moe"}), false, "experts with dropout");
  expect(changed(recomputing(experts("local", {}), {"moe"}), jitter), false, "experts with jitter");
  expect(changed(recomputing(experts("local", {"attn"}), {"moe"}), jitter), true, "that are not captured");
  expect(changed(experts("transformer_engine", {"moe_router"}), layers), false, "moe_layer_recompute is moe");
  expect(changed(experts("local", {"moe_router"}), layers), true, "which local also captures");
  expect(changed(experts("local", {"attn"}), layers), false, "core_attn stays among them");
}

TEST(CudaGraphOracle, KnowsWhatOffloadingAllows) {
  const auto flight = [](int64_t most) {
    return [most](TransformerConfig& config) { config.max_inflight_offloads = most; };
  };
  const auto cold = [](TransformerConfig& config) { config.cuda_graphs.warmup_steps = 0; };
  const auto moves = [](TransformerConfig& config) {
    config.cpu_offloading = true;
    config.cpu_offloading_num_layers = 1;
  };
  const std::string te = "transformer_engine";
  expect(changed(dense(te, {}), moves), false, "cpu_offloading in parts");
  expect(changed(dense("full_iteration", {}), moves), true, "in a whole step");
  expect(offloading(dense(te, {"attn"}), {"qkv_linear"}), true, "modules in parts");
  expect(changed(offloading(dense(te, {"attn"}), {"qkv_linear"}), cold), false, "without warm-up");
  expect(offloading(dense("full_iteration", {}), {"qkv_linear"}), false, "no limit in flight");
  expect(changed(offloading(dense("full_iteration", {}), {"qkv_linear"}), flight(-1)), false, "a limit below 0");
  expect(changed(offloading(dense("full_iteration", {}), {"qkv_linear"}), flight(0)), true, "a limit");
  expect(offloading(dense("local", {"attn"}), {"qkv_linear"}), false, "other modules than experts' with local");
  expect(offloading(experts("local", {"attn"}), {"expert_fc1"}), true, "experts' with local");
  expect(offloading(experts("local", {}), {"expert_fc1"}), false, "whole layers with local");
}

TEST(CudaGraphOracle, KnowsWhatGenerationAndOverlapAllow) {
  const auto scope = [](const char* word) {
    return [word](TransformerConfig& config) { config.cuda_graphs.inference_scope = word; };
  };
  expect(changed(dense("local", {}), scope("layer")), true, "layer");
  expect(changed(dense("local", {}), scope("block")), true, "block");
  expect(changed(dense("local", {}), scope("none")), false, "none of local");
  expect(changed(dense("none", {}), scope("layer")), false, "layers of none");
  expect(changed(dense("full_iteration", {}), scope("block")), false, "blocks of full_iteration");
  expect(changed(dense("transformer_engine", {}), scope("none")), true, "none");
  const auto overlaps = [](TransformerConfig& config) {
    config.ep = 2;
    config.bf16 = true;
    config.experts.dispatcher = "alltoall";
    config.experts.some_layers_dense = true;
    config.expert_options.overlap_comm = true;
  };
  expect(changed(experts("transformer_engine", {"attn"}), overlaps), true, "attention with overlapped messages");
  expect(changed(experts("transformer_engine", {"mlp"}), overlaps), false, "mlp with them");
  expect(changed(experts("local", {"mlp"}), overlaps), true, "which is of one implementation");
}

TEST(CudaGraphOracle, ResolvesEarlierSpellings) {
  const auto resolve = [](CudaGraphOptions options) {
    TransformerConfig config = dense("none", {});
    config.cuda_graphs = std::move(options);
    EXPECT_TRUE(violations(config).empty());
    const config::GraphSettings graphs = megatron::resolve(config).graphs;
    return std::pair(graphs.impl, graphs.modules);
  };
  const auto with = [](const std::function<void(CudaGraphOptions&)>& change) {
    CudaGraphOptions options;
    change(options);
    return options;
  };
  using Resolved = std::pair<std::string, Words>;
  EXPECT_EQ(resolve(with([](auto& o) { o.external_cuda_graph = true; })), (Resolved{"transformer_engine", {}}));
  EXPECT_EQ(resolve(with([](auto& o) { o.modules = {"full"}; })), (Resolved{"none", {}}));
  EXPECT_EQ(resolve(with([](auto& o) { o.scope = Words{"full_iteration"}; })), (Resolved{"full_iteration", {}}));
  EXPECT_EQ(resolve(with([](auto& o) {
              o.enable_cuda_graph = true;
              o.scope = Words{"attn", "mlp"};
            })),
            (Resolved{"local", {"attn", "mlp"}}));
  EXPECT_EQ(resolve(with([](auto& o) { o.modules = {"full_iteration_inference"}; })), (Resolved{"none", {}}));
}

TEST(CudaGraphOracle, RefusesSpellingsThatContradictEachOther) {
  const auto wrong = [](const std::function<void(CudaGraphOptions&)>& change) {
    TransformerConfig config = dense("none", {});
    change(config.cuda_graphs);
    return !violations(config).empty();
  };
  EXPECT_TRUE(wrong([](auto& o) { o.enable_cuda_graph = o.external_cuda_graph = true; }));
  EXPECT_TRUE(wrong([](auto& o) {
    o.enable_cuda_graph = true;
    o.impl = "local";
  }));
  EXPECT_TRUE(wrong([](auto& o) {
    o.modules = {"attn"};
    o.scope = Words{"attn"};
  }));
  EXPECT_TRUE(wrong([](auto& o) { o.modules = {"full", "attn"}; }));
  EXPECT_TRUE(wrong([](auto& o) { o.modules = {"full_iteration", "full_iteration_inference"}; }));
  EXPECT_TRUE(wrong([](auto& o) { o.modules = {"full_iteration", "attn"}; }));
  EXPECT_TRUE(wrong([](auto& o) {
    o.impl = "transformer_engine";
    o.modules = {"full_iteration"};
  }));
  EXPECT_TRUE(wrong([](auto& o) {
    o.impl = "full_iteration";
    o.modules = {"full_iteration_inference"};
  }));
  EXPECT_TRUE(wrong([](auto& o) {
    o.modules = {"full_iteration"};
    o.inference_scope = "block";
  }));
  EXPECT_TRUE(wrong([](auto& o) {
    o.impl = "local";
    o.modules = {"full_iteration_inference"};
    o.inference_scope = "layer";
  }));
  EXPECT_TRUE(wrong([](auto& o) { o.modules = {"attention"}; }));
}

}  // namespace metroplex::megatron::cuda_graphs_test
