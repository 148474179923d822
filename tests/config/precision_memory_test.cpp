// Rejected combinations of number formats, optimizers, shardings and activation memory options, and the values that
// the accepted ones resolve to.
#include <gtest/gtest.h>

#include "config/support.h"
#include "config/rules_transformer.h"

namespace metroplex::config::precision_memory_test {

TEST(Memory, AnUnknownModuleIsAnsweredWithTheNearestName) {
  const auto fix = [](const std::string& module) {
    return described(
        violations(good({"memory.recompute_granularity=selective", "memory.recompute_modules=" + module}), kWorld));
  };
  EXPECT_NE(fix("core_atn").find("did you mean core_attn?"), std::string::npos);
  EXPECT_NE(fix("moe_act").find("name activation for dense layers"), std::string::npos);
  EXPECT_NE(fix("experts_and_routers").find("use one of these"), std::string::npos);
}

// As Megatron's is_first_last_bf16_layer: prediction layers, numbered after the others, are not last layers.
TEST(LowPrecision, LayersAtBothEndsAreExcluded) {
  Precision precision;
  precision.fp8_format = Fp8Format::hybrid;
  EXPECT_TRUE(precision.of_layer(0, 8).rounds_operands());
  precision.first_last_layers_bf16 = true;
  precision.num_layers_at_start_in_bf16 = 2;
  for (const int64_t layer : {0, 1, 7}) EXPECT_FALSE(precision.of_layer(layer, 8).rounds_operands()) << layer;
  for (const int64_t layer : {2, 6, 8, 9}) EXPECT_TRUE(precision.of_layer(layer, 8).rounds_operands()) << layer;
}

TEST(LowPrecision, TheFirstPatternOfALayerCounts) {
  Precision precision;
  precision.fp4_format = Fp4Format::e2m1;
  precision.recipe_pattern = {"layers\\.0\\..*=none", "linear_fc[12]=mxfp8", ".*qkv=none"};
  EXPECT_EQ(precision.find_recipe("decoder.layers.0.mlp.linear_fc1"), Recipe::none);
  EXPECT_EQ(precision.find_recipe("decoder.layers.10.mlp.linear_fc1"), Recipe::mxfp8);
  EXPECT_EQ(precision.find_recipe("decoder.layers.1.self_attention.linear_proj"), Recipe::nvfp4);
  EXPECT_EQ(precision.find_recipe("decoder.layers.1.mlp.linear_fc3"), Recipe::nvfp4);
  EXPECT_EQ(precision.recipes(), (std::vector<Recipe>{Recipe::nvfp4, Recipe::mxfp8}));
  EXPECT_TRUE(precision.has_tensor_factors());
  EXPECT_FALSE(precision.delays_scales());
  precision.recipe_pattern.push_back("x=delayed");
  EXPECT_TRUE(precision.delays_scales());
  EXPECT_TRUE(precision.without_rounding().recipes().empty());
}

// Ranks that are threads of one process share a GPU, and one factor of libtorch's products.
TEST(LowPrecision, LibraryMultipliesFourBitCodes) {
  for (const char* const where : {"run.device=cpu", "run.backend=nccl"}) {
    const Config config = good({"precision.fp4_format=e2m1", "precision.fp8_products=library", where});
    EXPECT_TRUE(violations(config, kWorld).empty()) << where;
  }
  const Config threads =
      good({"precision.fp4_format=e2m1", "precision.fp8_products=library", "run.device=cuda", "run.backend=threads"});
  EXPECT_FALSE(violations(threads, kWorld).empty());
}

TEST(Precision, SeveralWrongFormatsAreToldAtOnce) {
  const std::string all = described(
      violations(good({"optim.store_param_remainders=true", "optim.optimizer=muon", "memory.offload_activations=host",
                       "parallel.align_param_gather=true", "memory.recompute_method=block"}),
                 kWorld));
  for (const char* key : {"optim.store_param_remainders", "parallel.align_param_gather", "memory.offload_activations",
                          "memory.recompute_method"}) {
    EXPECT_NE(all.find(std::string("\n  ") + key + " = "), std::string::npos) << all;
  }
}

static const std::vector<std::vector<std::string>>& allowed() {
  static const std::string bf16 = "precision.params_dtype=bf16", fp16 = "precision.params_dtype=fp16",
                           zero3 = "parallel.data_parallel_sharding_strategy=optim_grads_params";
  static const std::vector<std::vector<std::string>> kCases = {
      {bf16, "precision.fp32_residual_connection=true"},
      {bf16, "precision.output_logit_dtype=fp32"},
      {fp16, zero3, "precision.main_grads_dtype=params", "parallel.reduce_scatter_with_fp32_accumulation=true"},
      {bf16, "precision.main_grads_dtype=params"},
      {bf16, "precision.loss_scale=128"},
      {fp16},
      {fp16, "precision.loss_scale=1024", "precision.check_for_nan_in_grad=true"},
      {fp16, "precision.main_grads_dtype=params", "optim.optimizer=lion"},
      {"precision.loss_scale=8"},
      {bf16, "precision.fp8_format=e4m3", "precision.fp8_products=library"},
      {"precision.params_dtype=fp64", zero3},
      {"precision.params_dtype=fp64", "optim.adam_eps=1e-300", "optim.clip_grad=1e39"},
      {"optim.adam_eps=7.1e-46", "optim.weight_decay=3.4e38"},
      {"model.hidden_dropout=1", "model.attention_dropout=1", "model.init_method_std=0"},
      {"precision.params_dtype=fp64", "precision.main_grads_dtype=params"},
      {bf16, "optim.main_params_dtype=bf16", "optim.exp_avg_dtype=bf16", "optim.exp_avg_sq_dtype=8bit"},
      {bf16, "optim.store_param_remainders=true", zero3},
      {"optim.exp_avg_dtype=8bit", "optim.exp_avg_sq_dtype=8bit", zero3},
      {"optim.optimizer=muon", bf16},
      {"optim.optimizer_cpu_offload=true", zero3, bf16, "optim.exp_avg_dtype=8bit"},
      {"optim.optimizer_cpu_offload=true", "run.device=cuda", "optim.optimizer=lion"},
      {"memory.offload_activations=host", "run.device=cuda"},
      {"memory.offload_activations=host", "run.backend=nccl"},
      {"optim.decoupled_lr=1e-3", "optim.decoupled_min_lr=1e-4"},
      {"optim.param_groups=*.bias lr_mult=2 wd_mult=0,embedding.* wd_mult=0.5"},
      {zero3, "parallel.virtual_pipeline_model_parallel_size=2", "parallel.sequence_parallel=true"},
      {zero3, "parallel.num_distributed_optimizer_instances=2"},
      {"parallel.data_parallel_sharding_strategy=optim", "parallel.align_param_gather=true"},
      {"parallel.data_parallel_sharding_strategy=optim_grads", "parallel.overlap_param_gather=false"},
      {"parallel.overlap_param_gather=true"},
      {"memory.recompute_granularity=full", "memory.recompute_method=uniform", "memory.recompute_num_layers=3"},
      {"memory.recompute_granularity=full", "memory.recompute_method=block", "memory.recompute_num_layers=4",
       "memory.distribute_saved_activations=true", zero3},
      {"memory.recompute_granularity=full", "memory.recompute_method=block", "memory.recompute_num_layers=3",
       "parallel.pipeline_model_parallel_layout=Ett|ttt|ttt|L"},
      {"memory.recompute_granularity=selective"},
      {"memory.recompute_granularity=selective", "memory.recompute_modules=core_attn,mlp,layernorm,activation"},
      {"memory.offload_activations=file", "memory.offload_directory=/tmp"},
      {"memory.offload_activations=file", "memory.recompute_granularity=selective"},
  };
  return kCases;
}

TEST(Precision, AcceptsWhatTheRulesAllowAndResolvesItToAFixedPoint) {
  for (const auto& overrides : allowed()) {
    EXPECT_EQ(described(violations(good(overrides), kWorld)), "nothing") << overrides[0];
    const Config once = resolved(good(overrides), kWorld);
    EXPECT_EQ(described(violations(once, kWorld)), "nothing") << overrides[0];
    EXPECT_EQ(differences(resolved(once, kWorld), once), std::vector<std::string>{}) << overrides[0];
    EXPECT_EQ(differences(parse(dump(once)), once), std::vector<std::string>{}) << overrides[0];
  }
}

TEST(Precision, InDoubleEveryAcceptedRunIsAccepted) {
  for (const auto& overrides : allowed()) {
    for (const Config& config : {good(overrides), resolved(good(overrides), kWorld)}) {
      const Config wide = in_double_precision(config);
      EXPECT_EQ(wide.precision.params_dtype, ParamsDtype::fp64);
      EXPECT_EQ(described(violations(wide, kWorld)), "nothing") << overrides[0];
      EXPECT_TRUE(resolved(wide, kWorld).precision.check_for_nan_in_grad);
    }
  }
}

TEST(Resolved, WritesOutTheFormatOfGradientsAndWhatIsChecked) {
  const auto precision = [](const std::string& format) {
    return resolved(good({"precision.params_dtype=" + format}), kWorld).precision;
  };
  EXPECT_EQ(precision("fp32").main_grads_dtype, MainGradsDtype::fp32);
  EXPECT_EQ(precision("bf16").main_grads_dtype, MainGradsDtype::fp32);
  EXPECT_EQ(precision("fp16").main_grads_dtype, MainGradsDtype::fp32);
  EXPECT_EQ(precision("fp64").main_grads_dtype, MainGradsDtype::params);
  EXPECT_TRUE(precision("bf16").check_for_nan_in_grad);
  EXPECT_FALSE(precision("fp16").check_for_nan_in_grad);
  EXPECT_FALSE(resolved(good({"precision.params_dtype=fp16"}), kWorld).train.check_for_nan_in_loss);
  EXPECT_TRUE(resolved(good({"precision.params_dtype=fp16", "precision.loss_scale=8"}), kWorld)
                  .precision.check_for_nan_in_grad);
  EXPECT_EQ(resolved(good({"memory.recompute_granularity=selective"}), kWorld).memory.recompute_modules,
            (std::vector<std::string>{"core_attn"}));
}

TEST(Config, KnowsItsLevelOfZeroAndWhatItRecomputes) {
  const std::vector<std::pair<const char*, int>> levels = {
      {"no_shard", 0}, {"optim", 1}, {"optim_grads", 2}, {"optim_grads_params", 3}};
  for (const auto& [strategy, level] : levels) {
    Parallel parallel;
    parallel.data_parallel_sharding_strategy = strategy;
    EXPECT_EQ(parallel.sharding().stage(), level);
  }
  Parallel unknown;
  EXPECT_NE(catch_error([&] { unknown.data_parallel_sharding_strategy = "all"; }).find("optim_grads_params"),
            std::string::npos);
  Memory memory;
  EXPECT_FALSE(memory.recomputes("core_attn"));
  memory.recompute_granularity = "selective";
  EXPECT_TRUE(memory.recomputes("core_attn"));
  memory.recompute_modules = {"mlp"};
  EXPECT_FALSE(memory.recomputes("core_attn"));
  EXPECT_TRUE(memory.recomputes("mlp"));
}

}  // namespace metroplex::config::precision_memory_test
