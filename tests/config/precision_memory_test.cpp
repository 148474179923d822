// Rejected combinations of number formats, optimizers, shardings and activation memory options, and the values that
// the accepted ones resolve to.
#include <gtest/gtest.h>

#include "config/support.h"
#include "config/rules_transformer.h"

namespace metroplex::config::precision_memory_test {

static const std::vector<Wrong>& wrong_formats() {
  static const std::vector<Wrong> kCases = {
      {{"precision.params_dtype=fp64", "precision.loss_scale=8"}, "precision.loss_scale", "no meaning"},
      {{"precision.loss_scale=-1"}, "precision.loss_scale", "at least 0"},
      {{"precision.loss_scale=1e39"}, "precision.loss_scale", "at most"},
      {{"precision.initial_loss_scale=0"}, "precision.initial_loss_scale", "above 0"},
      {{"precision.min_loss_scale=0"}, "precision.min_loss_scale", "above 0"},
      {{"precision.min_loss_scale=4", "precision.initial_loss_scale=2"},
       "precision.min_loss_scale",
       "precision.initial_loss_scale = 2.0"},
      {{"precision.loss_scale_window=0"}, "precision.loss_scale_window", "at least 1"},
      {{"precision.hysteresis=0"}, "precision.hysteresis", "at least 1"},
      {{"precision.grad_norm_skip_threshold=0"}, "precision.grad_norm_skip_threshold", "above 0, or inf"},
      {{"precision.fp32_residual_connection=true"}, "precision.fp32_residual_connection", "half-precision"},
      {{"precision.main_grads_dtype=bf16"}, "precision.main_grads_dtype", "one of auto, fp32, params"},
      {{"precision.main_grads_dtype=params"}, "precision.main_grads_dtype", "half-precision"},
      {{"precision.main_grads_dtype=fp32", "precision.params_dtype=fp64"}, "precision.main_grads_dtype", "round"},
  };
  return kCases;
}

static const std::vector<Wrong>& wrong_optimizers() {
  static const std::vector<Wrong> kCases = {
      {{"optim.exp_avg_dtype=bf16", "optim.optimizer=sgd"}, "optim.exp_avg_dtype", "optim.optimizer = adam"},
      {{"optim.exp_avg_sq_dtype=8bit", "optim.optimizer=lion"}, "optim.exp_avg_sq_dtype", "optim.optimizer = adam"},
      {{"optim.exp_avg_dtype=8bit", "precision.params_dtype=fp64"}, "optim.exp_avg_dtype", "would round"},
      {{"optim.exp_avg_dtype=fp8"}, "optim.exp_avg_dtype", "one of fp32, bf16, 8bit"},
      {{"optim.main_params_dtype=bf16"}, "optim.main_params_dtype", "half-precision"},
      {{"optim.main_params_dtype=bf16", "precision.params_dtype=fp64"}, "optim.main_params_dtype", "half-precision"},
      {{"optim.main_params_dtype=bf16", "precision.params_dtype=fp16"}, "optim.main_params_dtype", "fewer digits"},
      {{"optim.main_params_dtype=bf16", "precision.params_dtype=bf16", "optim.optimizer=sgd"},
       "optim.main_params_dtype",
       "optim.optimizer = adam"},
      {{"optim.store_param_remainders=true"}, "optim.store_param_remainders", "upper half of an fp32 number"},
      {{"optim.store_param_remainders=true", "precision.params_dtype=fp16"},
       "optim.store_param_remainders",
       "upper half of an fp32 number"},
      {{"optim.store_param_remainders=true", "precision.params_dtype=bf16", "optim.main_params_dtype=bf16"},
       "optim.store_param_remainders",
       "no remainder"},
      {{"optim.store_param_remainders=true", "precision.params_dtype=bf16", "optim.optimizer=muon"},
       "optim.store_param_remainders",
       "optim.optimizer = adam"},
      {{"optim.optimizer_cpu_offload=true", "optim.optimizer=muon"},
       "optim.optimizer_cpu_offload",
       "needs whole matrices"},
      {{"optim.decoupled_min_lr=1e-4"}, "optim.decoupled_min_lr", "without optim.decoupled_lr"},
      {{"optim.decoupled_lr=1e-3", "optim.decoupled_min_lr=2e-3"}, "optim.decoupled_min_lr", "optim.decoupled_lr"},
      {{"optim.decoupled_lr=1e-4", "optim.lr_warmup_init=2e-4"}, "optim.lr_warmup_init", "optim.decoupled_lr"},
      {{"optim.adam_eps=1e-300"}, "optim.adam_eps", "is 0 in fp32"},
      {{"optim.adam_eps=7e-46", "precision.params_dtype=bf16"}, "optim.adam_eps", "is 0 in fp32"},
      {{"optim.adam_eps=1e39"}, "optim.adam_eps", "is infinite in fp32"},
      {{"optim.lr=1e-300"}, "optim.lr", "is 0 in fp32"},
      {{"optim.lr=1e39"}, "optim.lr", "is infinite in fp32"},
      {{"optim.min_lr=1e-300"}, "optim.min_lr", "is 0 in fp32"},
      {{"optim.lr_warmup_init=1e-300"}, "optim.lr_warmup_init", "is 0 in fp32"},
      {{"optim.decoupled_lr=1e-300"}, "optim.decoupled_lr", "is 0 in fp32"},
      {{"optim.decoupled_lr=1", "optim.decoupled_min_lr=1e-300"}, "optim.decoupled_min_lr", "is 0 in fp32"},
      {{"optim.weight_decay=1e39"}, "optim.weight_decay", "is infinite in fp32"},
      {{"optim.weight_decay_incr_style=linear", "optim.start_weight_decay=1e-300", "optim.end_weight_decay=1"},
       "optim.start_weight_decay",
       "is 0 in fp32"},
      {{"optim.weight_decay_incr_style=linear", "optim.start_weight_decay=1", "optim.end_weight_decay=1e300"},
       "optim.end_weight_decay",
       "is infinite in fp32"},
      {{"optim.muon_extra_scale_factor=1e-46"}, "optim.muon_extra_scale_factor", "is 0 in fp32"},
      {{"optim.clip_grad=1e-300"}, "optim.clip_grad", "is 0 in fp32"},
      {{"optim.lion_beta1=1"}, "optim.lion_beta1", "below 1"},
      {{"optim.muon_num_ns_steps=0"}, "optim.muon_num_ns_steps", "at least 1"},
      {{"optim.muon_scale_mode=huge"}, "optim.muon_scale_mode", "one of spectral"},
      {{"optim.param_groups=*.bias"}, "optim.param_groups", "changes nothing"},
      {{"optim.param_groups=*.bias lr=2"}, "optim.param_groups", "'lr=2' is neither"},
      {{"optim.param_groups=*.bias lr_mult=-1"}, "optim.param_groups", "at least 0"},
      {{"optim.param_groups=lr_mult=2"}, "optim.param_groups", "must begin with a pattern"},
      {{"optim.param_groups=* lr_mult=2,* lr_mult=1 lr_mult=2"}, "optim.param_groups", "given twice"},
  };
  return kCases;
}

static const std::vector<Wrong>& wrong_shardings() {
  static constexpr const char* kStrategy = "parallel.data_parallel_sharding_strategy";
  static constexpr const char* kInstances = "parallel.num_distributed_optimizer_instances";
  static const std::vector<Wrong> kCases = {
      {{"parallel.data_parallel_sharding_strategy=zero1"}, kStrategy, "one of no_shard, optim"},
      {{"parallel.num_distributed_optimizer_instances=2"}, kInstances, "no meaning"},
      {{"parallel.num_distributed_optimizer_instances=3", "parallel.data_parallel_sharding_strategy=optim"},
       kInstances,
       "must divide the 2 data-parallel ranks"},
      {{"parallel.num_distributed_optimizer_instances=0", "parallel.data_parallel_sharding_strategy=optim"},
       kInstances,
       "at least 1"},
      {{"parallel.align_param_gather=true"}, "parallel.align_param_gather", "not no_shard"},
      {{"parallel.align_param_gather=true", "parallel.data_parallel_sharding_strategy=optim",
        "parallel.overlap_param_gather=false"},
       "parallel.align_param_gather",
       "parallel.overlap_param_gather"},
      {{"parallel.align_param_gather=true", "parallel.data_parallel_sharding_strategy=optim_grads_params"},
       "parallel.align_param_gather",
       "not optim_grads_params"},
  };
  return kCases;
}

static const std::vector<Wrong>& wrong_memory() {
  static constexpr const char* kSaved = "memory.distribute_saved_activations";
  static constexpr const char* kLayers = "memory.recompute_num_layers";
  static const std::string full = "memory.recompute_granularity=full", uniform = "memory.recompute_method=uniform",
                           selective = "memory.recompute_granularity=selective";
  static const std::vector<Wrong> kCases = {
      {{"memory.recompute_granularity=all"}, "memory.recompute_granularity", "one of none, full, selective"},
      {{full, "memory.recompute_num_layers=1"}, "memory.recompute_method", "must be given"},
      {{full, "memory.recompute_method=blocks"}, "memory.recompute_method", "one of (empty), uniform, block"},
      {{full, uniform}, kLayers, "at least 1"},
      {{full, uniform, "memory.recompute_num_layers=-1"}, kLayers, "at least 0"},
      {{full, uniform, "memory.recompute_num_layers=5"}, kLayers, "exceed the 4 layers"},
      {{full, uniform, "memory.recompute_num_layers=3", "parallel.virtual_pipeline_model_parallel_size=2"},
       kLayers,
       "exceed the 2 layers"},
      {{full, uniform, "memory.recompute_num_layers=6", "parallel.decoder_first_pipeline_num_layers=3"},
       kLayers,
       "exceed the 5 layers"},
      {{full, uniform, "memory.recompute_num_layers=4", "parallel.pipeline_model_parallel_layout=Ett|ttt|ttt|L"},
       kLayers,
       "exceed the 3 layers"},
      {{full, uniform, "memory.recompute_num_layers=6", "parallel.account_for_embedding_in_pipeline_split=true",
        "parallel.account_for_loss_in_pipeline_split=true"},
       kLayers,
       "exceed the 5 layers"},
      {{full, uniform, "memory.recompute_num_layers=1", "memory.recompute_modules=mlp"},
       "memory.recompute_modules",
       "selective"},
      {{selective, uniform}, "memory.recompute_method", "full recompute"},
      {{selective, "memory.recompute_num_layers=1"}, kLayers, "no meaning"},
      {{selective, "memory.recompute_modules=core_atn"}, "memory.recompute_modules", "must be one of core_attn"},
      {{selective, "memory.recompute_modules=mlp,moes"}, "memory.recompute_modules", "must be one of core_attn"},
      {{uniform}, "memory.recompute_method", "memory.recompute_granularity = none"},
      {{"memory.recompute_num_layers=1"}, kLayers, "memory.recompute_granularity = none"},
      {{"memory.recompute_modules=mlp"}, "memory.recompute_modules", "memory.recompute_granularity = none"},
      {{"memory.distribute_saved_activations=true"}, kSaved, "full recompute"},
      {{"memory.distribute_saved_activations=true", selective}, kSaved, "full recompute"},
      {{"memory.distribute_saved_activations=true", full, uniform, "memory.recompute_num_layers=1",
        "parallel.tensor_model_parallel_size=1"},
       kSaved,
       "above 1"},
      {{"memory.distribute_saved_activations=true", full, uniform, "memory.recompute_num_layers=1",
        "parallel.sequence_parallel=true"},
       kSaved,
       "excludes parallel.sequence_parallel"},
      {{"memory.distribute_saved_activations=true", full, uniform, "memory.recompute_num_layers=1",
        "train.seq_length=33", "model.hidden_size=33", "model.kv_channels=16"},
       kSaved,
       "multiple of parallel.tensor_model_parallel_size = 2"},
      {{"memory.offload_activations=host"}, "memory.offload_activations", "may compute on the CPU"},
      {{"memory.offload_activations=host", "run.device=cpu"}, "memory.offload_activations", "host memory already"},
      {{"memory.offload_activations=disk"}, "memory.offload_activations", "one of none, host, file"},
      {{"memory.offload_directory=/tmp"}, "memory.offload_directory", "not none"},
  };
  return kCases;
}

TEST(Precision, RefusesFormatsThatDoNotGoTogether) {
  for (const Wrong& wrong : wrong_formats()) expect_refused(wrong);
}

TEST(Optim, RefusesWhatAnOptimizerCannotKeep) {
  for (const Wrong& wrong : wrong_optimizers()) expect_refused(wrong);
}

TEST(Sharding, RefusesWhatCannotBeShared) {
  for (const Wrong& wrong : wrong_shardings()) expect_refused(wrong);
}

TEST(Memory, RefusesWhatCannotBeRecomputedSplitOrMoved) {
  for (const Wrong& wrong : wrong_memory()) expect_refused(wrong);
}

TEST(Memory, AnUnknownModuleIsAnsweredWithTheNearestName) {
  const auto fix = [](const std::string& module) {
    return described(
        violations(good({"memory.recompute_granularity=selective", "memory.recompute_modules=" + module}), kWorld));
  };
  EXPECT_NE(fix("core_atn").find("did you mean core_attn?"), std::string::npos);
  EXPECT_NE(fix("moe_act").find("name activation for dense layers"), std::string::npos);
  EXPECT_NE(fix("experts_and_routers").find("use one of these"), std::string::npos);
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
      {bf16, "precision.main_grads_dtype=params"},
      {bf16, "precision.loss_scale=128"},
      {fp16},
      {fp16, "precision.loss_scale=1024", "precision.check_for_nan_in_grad=true"},
      {fp16, "precision.main_grads_dtype=params", "optim.optimizer=lion"},
      {"precision.loss_scale=8"},
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
