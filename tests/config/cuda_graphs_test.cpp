// Keys of graph capture: their sets, their rules, and their older names.
#include "config/cuda_graph.h"

#include "config/support.h"

namespace metroplex::config::cuda_graphs_test {

namespace {

const std::string kTe = "train.cuda_graph_impl=transformer_engine", kLocal = "train.cuda_graph_impl=local",
                  kIteration = "train.cuda_graph_impl=full_iteration", kImpl = "train.cuda_graph_impl",
                  kScope = "train.cuda_graph_modules";

const std::vector<std::string> kRecomputesMoe = {"memory.recompute_granularity=selective",
                                                 "memory.recompute_modules=moe"};

std::vector<std::string> with(const std::string& first, std::vector<std::string> rest) {
  rest.insert(rest.begin(), first);
  return rest;
}

std::vector<std::string> experts(const std::string& first, std::vector<std::string> rest = {}) {
  for (const char* one :
       {"model.num_moe_experts=4", "model.add_bias_linear=false", "parallel.sequence_parallel=true"})
    rest.emplace_back(one);
  return with(first, std::move(rest));
}

void expect_accepted(const std::vector<std::string>& overrides) {
  EXPECT_EQ(described(violations(good(overrides), kWorld)), "nothing") << overrides[0];
}

}  // namespace

TEST(CudaGraphs, AScopeIsTheModulesThatAreNamedAndAllWhereNoneIs) {
  using enum CudaGraphModule;
  const auto scope = [](const std::string& impl, const std::string& modules) {
    return good({impl, "train.cuda_graph_modules=" + modules}).train.captured_modules();
  };
  EXPECT_EQ(scope(kTe, ""), (CudaGraphModules{attn, mlp, moe, mamba}));
  EXPECT_EQ(scope(kLocal, "attn,mlp"), (CudaGraphModules{attn, mlp}));
  EXPECT_EQ(scope(kTe, "moe_router"), (CudaGraphModules{moe_router}));
  EXPECT_EQ(scope(kLocal, "moe_router"), (CudaGraphModules{moe_router, moe_preprocess}));
  EXPECT_TRUE(scope(kIteration, "attn").empty());
  EXPECT_TRUE(good().train.captured_modules().empty());
  EXPECT_FALSE((CudaGraphModules{attn}.has(mlp)));
  EXPECT_TRUE(good({kTe}).train.captures_parts() && good({kLocal}).train.captures_parts());
  EXPECT_TRUE(good({kIteration}).train.captures_iteration() && !good({kIteration}).train.captures_parts());
  EXPECT_FALSE(good().train.captures_parts() || good().train.captures_iteration());
}

TEST(CudaGraphs, WhatAReplayCanDoIsAccepted) {
  const std::string selective = "memory.recompute_granularity=selective";
  for (const std::string& impl : {kTe, kLocal}) {
    expect_accepted({impl});
    expect_accepted({impl, "train.cuda_graph_modules=attn"});
    expect_accepted({impl, selective, "model.attention_dropout=0.1"});
    expect_accepted({impl, "parallel.data_parallel_sharding_strategy=optim"});
    expect_accepted({impl, "optim.optimizer_cpu_offload=true"});
    expect_accepted(experts(impl, {"train.cuda_graph_modules=attn"}));
    expect_accepted(experts(impl, {"train.cuda_graph_modules=attn,mlp", "model.moe_layer_freq=2"}));
    expect_accepted(experts(
        impl, {"train.cuda_graph_modules=attn,mlp", "model.moe_layer_freq=2", kRecomputesMoe[0], kRecomputesMoe[1]}));
    expect_accepted(experts(impl, {"train.cuda_graph_modules=attn,moe_router"}));
    expect_accepted(experts(impl, {"train.cuda_graph_modules=attn,moe_router,moe_preprocess"}));
    const std::vector<std::string> buffers = {"model.moe_token_dispatcher_type=static_buffer",
                                              "model.moe_expert_rank_capacity_factor=1.5"};
    expect_accepted(experts(impl, buffers));
    expect_accepted(experts(impl, {buffers[0], buffers[1], "train.cuda_graph_modules=attn,moe"}));
  }
  // Megatron tests the loss for NaN on the host.
  expect_accepted({kIteration, "train.check_for_nan_in_loss=true", "train.cuda_graph_warmup_steps=0"});
  expect_accepted({kIteration, "memory.recompute_granularity=full", "memory.recompute_method=uniform",
                   "memory.recompute_num_layers=1", "model.hidden_dropout=0.1"});
  expect_accepted({kIteration, "parallel.data_parallel_sharding_strategy=optim_grads_params"});
  expect_accepted({kIteration, "run.device=cuda", "run.backend=nccl"});
  expect_accepted({kIteration, "run.device=cpu", "run.backend=threads"});
  expect_accepted({kIteration, "memory.offload_activations=host", "run.device=cuda"});
  expect_accepted(experts(kIteration, {"model.moe_expert_capacity_factor=1", "model.moe_grouped_gemm=true",
                                       "model.moe_pad_expert_input_to_capacity=true"}));
  expect_accepted(experts(kIteration, {"model.moe_token_dispatcher_type=allgather"}));
  expect_accepted(experts(
      kIteration, {"model.moe_token_dispatcher_type=static_buffer", "model.moe_expert_rank_capacity_factor=1.5"}));
  expect_accepted(
      experts(kIteration, {"model.moe_expert_capacity_factor=1", "parallel.expert_tensor_parallel_size=1"}));
}

TEST(CudaGraphs, ViolationsHaveTheModulesAsValue) {
  EXPECT_EQ(violations(good({"train.cuda_graph_modules=attn,mlp"}), kWorld).at(0).value, "attn,mlp");
}

TEST(CudaGraphs, WhatGeneratesOrEvaluatesAloneHeedsNone) {
  const Config config = good(experts(kIteration, {"optim.optimizer_cpu_offload=true"}));
  EXPECT_FALSE(violations(config, kWorld).empty());
  EXPECT_EQ(described(violations(config, kWorld, Use::evaluation)), "nothing");
}

TEST(CudaGraphs, WhatIsCapturedWithoutBeingAskedToHeedsWhatDecidesTheFormOfSteps) {
  const Config config = good({"parallel.context_parallel_size=2", "data.reset_attention_mask=true"});
  EXPECT_EQ(described(violations(config, kWorld)), "nothing");
  EXPECT_EQ(described(violations(config, kWorld, Use::evaluation)), "nothing");
  const std::vector<Violation> found = violations(config, kWorld, Use::capture);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].key + " = " + found[0].value, "train.cuda_graph_impl = full_iteration");
  EXPECT_EQ(found[0].fix, "set cp_comm_type to a2a") << "capture is off";
  const Config hybrid = good({"parallel.hybrid_context_parallel=true", "parallel.context_parallel_cut=balanced",
                              "parallel.pipeline_model_parallel_size=1", "data.reset_attention_mask=true"});
  EXPECT_EQ(violations(hybrid, kWorld, Use::capture).size(), violations(hybrid, kWorld).size() + 1);
}

TEST(CudaGraphs, KeysOfBeforeSayTheSameInTodays) {
  struct Spelling {
    const char* yaml;
    CudaGraphImpl impl;
    std::vector<std::string> modules;
  };
  const std::vector<Spelling> spellings = {
      {"train: {cuda_graph_impl: transformer_engine, cuda_graph_scope: [attn, moe_router, moe_preprocess]}",
       CudaGraphImpl::transformer_engine,
       {"attn", "moe_router", "moe_preprocess"}},
      {"train: {enable_cuda_graph: true}", CudaGraphImpl::local, {}},
      {"train: {enable_cuda_graph: false}", CudaGraphImpl::none, {}},
      {"train: {external_cuda_graph: true, cuda_graph_scope: attn}", CudaGraphImpl::transformer_engine, {"attn"}},
      {"train: {external_cuda_graph: true, cuda_graph_scope: full}", CudaGraphImpl::transformer_engine, {}},
      {"train: {cuda_graph_scope: full_iteration}", CudaGraphImpl::full_iteration, {}},
      {"train: {cuda_graph_scope: []}", CudaGraphImpl::none, {}},
  };
  for (const Spelling& one : spellings) {
    const Train train = parse(one.yaml).train;
    EXPECT_EQ(train.cuda_graph_impl, one.impl) << one.yaml;
    EXPECT_EQ(train.cuda_graph_modules, one.modules) << one.yaml;
  }
  const Train train = load("", {"train.external_cuda_graph=true", "train.cuda_graph_scope=attn,mlp"}).train;
  EXPECT_EQ(train.cuda_graph_impl, CudaGraphImpl::transformer_engine);
  EXPECT_EQ(train.cuda_graph_modules, (std::vector<std::string>{"attn", "mlp"}));
  EXPECT_EQ(load("", {"train.cuda_graph_scope=[attn, mlp]"}).train.cuda_graph_modules, train.cuda_graph_modules);
}

TEST(CudaGraphs, KeysOfBeforeThatContradictOrSayNothingAreRefusedWhereTheyStand) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"train:\n  enable_cuda_graph: true\n  cuda_graph_impl: local\n",
       "line 3: key 'train.cuda_graph_impl' is written"},
      {"train:\n  cuda_graph_scope: [attn]\n  cuda_graph_modules: [mlp]\n", "line 3: key 'train.cuda_graph_modules'"},
      {"train:\n  enable_cuda_graph: maybe\n", "line 2: train.enable_cuda_graph: expected true or false"},
      {"train:\n  cuda_graph_scope: [full, attn]\n", "full: cannot be combined with others"},
      {"cuda_graph_impl: transformer_engine\n", "line 1: 'cuda_graph_impl' is a key of section train"},
      {"cuda_graph_scope:\n  - attn\n", "line 1: 'cuda_graph_scope' is a key of section train"},
      {"model:\n  cuda_graph_scope: attn\n", "unknown key 'model.cuda_graph_scope'"},
  };
  for (const auto& [yaml, text] : cases) {
    const std::string error = catch_error([yaml = yaml] { parse(yaml); });
    EXPECT_NE(error.find(text), std::string::npos) << yaml << error;
  }
  EXPECT_NE(catch_error([] { load("", {"train.enable_cuda_graph=1"}); }).find("expected true or false"),
            std::string::npos);
}

}  // namespace metroplex::config::cuda_graphs_test
