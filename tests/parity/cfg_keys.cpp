#include "parity/cfg_keys.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "config/rules_transformer.h"

namespace metroplex::parity {
namespace {

using Json = nlohmann::json;
using config::Config;

struct Key {
  const char* name;
  void (*apply)(Config& config, const Json& value);
};

// fp32_residual_connection has no effect if everything is fp32.
void residual(Config& config, const Json& value) {
  config.precision.fp32_residual_connection = value && config.precision.half();
}

void no_dropout(Config&, const Json& value) {
  MPX_CHECK(value.get<double>() == 0, "parity", "config.cfg: a dropout of ", value.dump(),
            " cannot be replayed: the recorded masks are from a random stream that only Megatron has");
}

void recompute_modules(Config& config, const Json& value) {
  for (const Json& module : value) {
    const auto& names = config::recompute_module_names();
    const std::string name = module;
    MPX_CHECK(std::find(names.begin(), names.end(), name) != names.end(), "parity", "config.cfg.recompute_modules: '",
              name, "' is not something this build can replay");
    config.memory.recompute_modules.push_back(name);
  }
}

void offload(Config& config, const Json& value) {
  config.memory.offload_activations = value.get<bool>() ? "file" : "none";
}

// A type by torch's name or Megatron's: "torch.bfloat16", "bf16".
std::string dtype_word(const Json& value) {
  const std::string text = value;
  if (text.find("bfloat16") != std::string::npos) return "bf16";
  if (text.find("float32") != std::string::npos) return "fp32";
  return text;
}

void require_word(const char* key, const Json& value, std::initializer_list<const char*> words) {
  const bool known = std::any_of(words.begin(), words.end(), [&](const char* word) { return value == word; });
  MPX_CHECK(known, "parity", "config.cfg.", key, " = ", value.dump(), ": is not computed here; record ",
            *words.begin());
}

const Key kModelKeys[] = {
    {"num_query_groups", [](Config& config, const Json& value) { config.model.num_query_groups = value; }},
    {"kv_channels", [](Config& config, const Json& value) { config.model.kv_channels = value; }},
    {"ffn_hidden_size", [](Config& config, const Json& value) { config.model.ffn_hidden_size = value; }},
    {"layernorm_epsilon", [](Config& config, const Json& value) { config.model.layernorm_epsilon = value; }},
    {"normalization",
     [](Config& config, const Json& value) { config.model.normalization = value.get<std::string>(); }},
    {"gated_linear_unit", [](Config& config, const Json& value) { config.model.gated_linear_unit = value; }},
    {"add_bias_linear", [](Config& config, const Json& value) { config.model.add_bias_linear = value; }},
    {"add_qkv_bias", [](Config& config, const Json& value) { config.model.add_qkv_bias = value; }},
    {"qk_layernorm", [](Config& config, const Json& value) { config.model.qk_layernorm = value; }},
    {"hidden_dropout", no_dropout},
    {"attention_dropout", no_dropout},
};

// Several of Megatron's words or numbers are one text with commas here.
std::string with_commas(const Json& value) {
  if (!value.is_array()) return value.is_string() ? value.get<std::string>() : value.dump();
  std::string text;
  for (const Json& one : value) text += (text.empty() ? "" : ",") + with_commas(one);
  return text;
}

// Megatron's flex selects among libraries that send as alltoall does.
void dispatcher(Config& config, const Json& value) {
  const std::string word = value;
  config.model.moe_token_dispatcher_type = word == "flex" || word == "alltoall_seq" ? "alltoall" : word;
}

const Key kExpertKeys[] = {
    {"num_moe_experts", [](Config& config, const Json& value) { config.model.num_moe_experts = value; }},
    {"moe_layer_freq",
     [](Config& config, const Json& value) {
       config.model.moe_layer_freq = value.is_string() ? value.get<std::string>() : value.dump();
     }},
    {"moe_ffn_hidden_size", [](Config& config, const Json& value) { config.model.moe_ffn_hidden_size = value; }},
    {"moe_router_topk", [](Config& config, const Json& value) { config.model.moe_router_topk = value; }},
    {"moe_router_score_function",
     [](Config& config, const Json& value) { config.model.moe_router_score_function = value.get<std::string>(); }},
    {"moe_router_pre_softmax",
     [](Config& config, const Json& value) { config.model.moe_router_pre_softmax = value; }},
    {"moe_router_num_groups", [](Config& config, const Json& value) { config.model.moe_router_num_groups = value; }},
    {"moe_router_group_topk", [](Config& config, const Json& value) { config.model.moe_router_group_topk = value; }},
    {"moe_router_topk_scaling_factor",
     [](Config& config, const Json& value) { config.model.moe_router_topk_scaling_factor = value; }},
    {"moe_router_enable_expert_bias",
     [](Config& config, const Json& value) { config.model.moe_router_enable_expert_bias = value; }},
    {"moe_router_bias_update_rate",
     [](Config& config, const Json& value) { config.model.moe_router_bias_update_rate = value; }},
    {"moe_router_load_balancing_type",
     [](Config& config, const Json& value) { config.model.moe_router_load_balancing_type = with_commas(value); }},
    {"moe_aux_loss_coeff",
     [](Config& config, const Json& value) { config.model.moe_aux_loss_coeff = with_commas(value); }},
    {"moe_z_loss_coeff", [](Config& config, const Json& value) { config.model.moe_z_loss_coeff = value; }},
    {"moe_router_dtype",
     [](Config& config, const Json& value) { config.model.moe_router_dtype = value.get<std::string>(); }},
    {"moe_expert_capacity_factor",
     [](Config& config, const Json& value) { config.model.moe_expert_capacity_factor = value; }},
    {"moe_pad_expert_input_to_capacity",
     [](Config& config, const Json& value) { config.model.moe_pad_expert_input_to_capacity = value; }},
    {"moe_token_drop_policy",
     [](Config& config, const Json& value) { config.model.moe_token_drop_policy = value.get<std::string>(); }},
    {"moe_token_dispatcher_type", dispatcher},
    {"moe_grouped_gemm", [](Config& config, const Json& value) { config.model.moe_grouped_gemm = value; }},
    {"moe_apply_probs_on_input",
     [](Config& config, const Json& value) { config.model.moe_apply_probs_on_input = value; }},
    {"moe_shared_expert_intermediate_size",
     [](Config& config, const Json& value) { config.model.moe_shared_expert_intermediate_size = value; }},
    {"moe_shared_expert_gate",
     [](Config& config, const Json& value) { config.model.moe_shared_expert_gate = value; }},
    {"moe_shared_expert_overlap",
     [](Config& config, const Json& value) { config.model.moe_shared_expert_overlap = value; }},
    {"expert_model_parallel_size",
     [](Config& config, const Json& value) { config.parallel.expert_model_parallel_size = value; }},
    {"expert_tensor_parallel_size",
     [](Config& config, const Json& value) { config.parallel.expert_tensor_parallel_size = value; }},
};

const Key kParallelKeys[] = {
    {"num_layers_in_first_pipeline_stage",
     [](Config& config, const Json& value) { config.parallel.decoder_first_pipeline_num_layers = value; }},
    {"num_layers_in_last_pipeline_stage",
     [](Config& config, const Json& value) { config.parallel.decoder_last_pipeline_num_layers = value; }},
    {"account_for_embedding_in_pipeline_split",
     [](Config& config, const Json& value) { config.parallel.account_for_embedding_in_pipeline_split = value; }},
    {"account_for_loss_in_pipeline_split",
     [](Config& config, const Json& value) { config.parallel.account_for_loss_in_pipeline_split = value; }},
    {"pipeline_model_parallel_layout",
     [](Config& config, const Json& value) { config.parallel.pipeline_model_parallel_layout = value; }},
    {"microbatch_group_size_per_vp_stage",
     [](Config& config, const Json& value) { config.parallel.microbatch_group_size_per_vp_stage = value; }},
    {"overlap_p2p_comm", [](Config& config, const Json& value) { config.parallel.overlap_p2p_comm = value; }},
    {"overlap_grad_reduce", [](Config& config, const Json& value) { config.parallel.overlap_grad_reduce = value; }},
    {"overlap_param_gather", [](Config& config, const Json& value) { config.parallel.overlap_param_gather = value; }},
    {"align_param_gather", [](Config& config, const Json& value) { config.parallel.align_param_gather = value; }},
    {"bucket_size", [](Config& config, const Json& value) { config.parallel.ddp_bucket_size = value; }},
    {"use_distributed_optimizer",
     [](Config& config, const Json& value) {
       if (value.get<bool>() && !config.parallel.sharding().any())
         config.parallel.data_parallel_sharding_strategy = "optim";
     }},
    {"data_parallel_sharding_strategy",
     [](Config& config, const Json& value) {
       config.parallel.data_parallel_sharding_strategy = value.get<std::string>();
     }},
    {"num_distributed_optimizer_instances",
     [](Config& config, const Json& value) { config.parallel.num_distributed_optimizer_instances = value; }},
};

const Key kTrainKeys[] = {
    {"calculate_per_token_loss",
     [](Config& config, const Json& value) { config.train.calculate_per_token_loss = value; }},
    {"adam_beta1", [](Config& config, const Json& value) { config.optim.adam_beta1 = value; }},
    {"adam_beta2", [](Config& config, const Json& value) { config.optim.adam_beta2 = value; }},
    {"adam_eps", [](Config& config, const Json& value) { config.optim.adam_eps = value; }},
    {"sgd_momentum", [](Config& config, const Json& value) { config.optim.sgd_momentum = value; }},
    {"muon_momentum", [](Config& config, const Json& value) { config.optim.muon_momentum = value; }},
    {"muon_nesterov", [](Config& config, const Json& value) { config.optim.muon_use_nesterov = value; }},
    {"muon_split_qkv", [](Config& config, const Json& value) { config.optim.muon_split_qkv = value; }},
    {"muon_num_ns_steps", [](Config& config, const Json& value) { config.optim.muon_num_ns_steps = value; }},
    {"muon_scale_mode",
     [](Config& config, const Json& value) { config.optim.muon_scale_mode = value.get<std::string>(); }},
    {"muon_extra_scale_factor",
     [](Config& config, const Json& value) { config.optim.muon_extra_scale_factor = value; }},
    {"muon_coefficient_type",
     [](Config& config, const Json& value) { config.optim.muon_coefficient_type = value.get<std::string>(); }},
    {"muon_fp32_matmul_prec",
     [](Config&, const Json& value) { require_word("muon_fp32_matmul_prec", value, {"highest"}); }},
    {"muon_tp_mode",
     [](Config&, const Json& value) {
       require_word("muon_tp_mode", value, {"duplicated", "distributed"});
     }},
    {"clip_grad", [](Config& config, const Json& value) { config.optim.clip_grad = value; }},
    {"weight_decay", [](Config& config, const Json& value) { config.optim.weight_decay = value; }},
    {"start_weight_decay", [](Config& config, const Json& value) { config.optim.start_weight_decay = value; }},
    {"end_weight_decay", [](Config& config, const Json& value) { config.optim.end_weight_decay = value; }},
    {"weight_decay_incr_style",
     [](Config& config, const Json& value) { config.optim.weight_decay_incr_style = value.get<std::string>(); }},
    {"lr_warmup_init", [](Config& config, const Json& value) { config.optim.lr_warmup_init = value; }},
    {"lr_decay_iters", [](Config& config, const Json& value) { config.optim.lr_decay_iters = value; }},
    {"lr_wsd_decay_style",
     [](Config& config, const Json& value) { config.optim.lr_wsd_decay_style = value.get<std::string>(); }},
    {"lr_wsd_decay_iters", [](Config& config, const Json& value) { config.optim.lr_wsd_decay_iters = value; }},
    {"decoupled_lr", [](Config& config, const Json& value) { config.optim.decoupled_lr = value; }},
    {"decoupled_min_lr", [](Config& config, const Json& value) { config.optim.decoupled_min_lr = value; }},
    {"apply_wd_to_qk_layernorm",
     [](Config& config, const Json& value) { config.optim.apply_wd_to_qk_layernorm = value; }},
    {"optimizer_cpu_offload", [](Config& config, const Json& value) { config.optim.optimizer_cpu_offload = value; }},
    {"main_params_dtype",
     [](Config& config, const Json& value) { config.optim.main_params_dtype = dtype_word(value); }},
    {"exp_avg_dtype", [](Config& config, const Json& value) { config.optim.exp_avg_dtype = dtype_word(value); }},
    {"exp_avg_sq_dtype",
     [](Config& config, const Json& value) { config.optim.exp_avg_sq_dtype = dtype_word(value); }},
    {"store_param_remainders",
     [](Config& config, const Json& value) { config.optim.store_param_remainders = value; }},
};

const Key kPrecisionKeys[] = {
    {"fp32_residual_connection", residual},
    {"grad_reduce_in_fp32",
     [](Config& config, const Json& value) {
       if (!value.get<bool>() && config.precision.half()) config.precision.main_grads_dtype = "params";
     }},
    {"loss_scale", [](Config& config, const Json& value) { config.precision.loss_scale = value; }},
    {"initial_loss_scale", [](Config& config, const Json& value) { config.precision.initial_loss_scale = value; }},
    {"min_loss_scale", [](Config& config, const Json& value) { config.precision.min_loss_scale = value; }},
    {"loss_scale_window", [](Config& config, const Json& value) { config.precision.loss_scale_window = value; }},
    {"hysteresis", [](Config& config, const Json& value) { config.precision.hysteresis = value; }},
    {"grad_norm_skip_threshold",
     [](Config& config, const Json& value) { config.precision.grad_norm_skip_threshold = value; }},
    {"recompute_granularity",
     [](Config& config, const Json& value) { config.memory.recompute_granularity = value.get<std::string>(); }},
    {"recompute_method",
     [](Config& config, const Json& value) { config.memory.recompute_method = value.get<std::string>(); }},
    {"recompute_num_layers", [](Config& config, const Json& value) { config.memory.recompute_num_layers = value; }},
    {"recompute_modules", recompute_modules},
    {"distribute_saved_activations",
     [](Config& config, const Json& value) { config.memory.distribute_saved_activations = value; }},
    {"cpu_offloading", offload},
    {"fine_grained_activation_offloading", offload},
};

// Choices between implementations, initial values (replaced by the recipe), and behavior that the product always has:
// the trained function is the same.
const char* const kSameFunction[] = {
    "init_method_std", "embedding_init_method_std", "perform_initialization", "use_cpu_initialization",
    "init_model_with_meta_device", "transformer_impl", "attention_backend", "attention_softmax_in_fp32",
    // The scores are divided by the layer's number before the softmax and multiplied by it inside.
    "apply_query_key_layer_scaling", "bias_activation_fusion", "masked_softmax_fusion", "bias_dropout_fusion",
    "apply_rope_fusion", "persist_layer_norm", "memory_efficient_layer_norm", "gradient_accumulation_fusion",
    "cross_entropy_loss_fusion", "async_tensor_model_parallel_allreduce", "deallocate_pipeline_outputs",
    "batch_p2p_comm", "batch_p2p_sync", "overlap_p2p_comm_warmup_flush", "variable_seq_lengths", "deterministic_mode",
    "average_in_collective", "check_for_nan_in_grad", "log_num_zeros_in_grad", "barrier_with_L1_time",
    "clone_scatter_output_in_embedding", "disable_parameter_transpose_cache", "use_precision_aware_optimizer",
    "cpu_offloading_num_layers", "offload_modules", "min_offloaded_tensor_size", "moe_permute_fusion",
    "moe_router_fusion", "moe_per_layer_logging"};

template <size_t N>
bool apply_from(const Key (&keys)[N], const std::string& name, const Json& value, Config& config) {
  for (const Key& key : keys) {
    if (name != key.name) continue;
    if (!value.is_null()) key.apply(config, value);
    return true;
  }
  return false;
}

}  // namespace

void apply_cfg(const Json& cfg, Config& config, const std::string& where) {
  for (const auto& [name, value] : cfg.items()) {
    const bool same = std::find(std::begin(kSameFunction), std::end(kSameFunction), name) != std::end(kSameFunction);
    const bool known = same || apply_from(kModelKeys, name, value, config) ||
                       apply_from(kExpertKeys, name, value, config) ||
                       apply_from(kParallelKeys, name, value, config) ||
                       apply_from(kTrainKeys, name, value, config) || apply_from(kPrecisionKeys, name, value, config);
    MPX_CHECK(known, "parity", where, ".", name, " = ", value.dump(), " is not something this build can replay");
  }
}

}  // namespace metroplex::parity
