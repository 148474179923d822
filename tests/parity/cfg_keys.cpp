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
  void (*apply)(Config& c, const Json& value);
};

// fp32_residual_connection has no effect if everything is fp32.
void residual(Config& c, const Json& value) { c.precision.fp32_residual_connection = value && c.precision.half(); }

void no_dropout(Config&, const Json& value) {
  MPX_CHECK(value.get<double>() == 0, "parity", "config.cfg: a dropout of ", value.dump(),
            " cannot be replayed: the recorded masks came from a stream of random numbers that only Megatron has");
}

void recompute_modules(Config& c, const Json& value) {
  for (const Json& module : value) {
    const auto& names = config::recompute_module_names();
    const std::string name = module;
    MPX_CHECK(std::find(names.begin(), names.end(), name) != names.end(), "parity", "config.cfg.recompute_modules: '",
              name, "' is not something this build can replay");
    c.memory.recompute_modules.push_back(name);
  }
}

void offload(Config& c, const Json& value) { c.memory.offload_activations = value.get<bool>() ? "file" : "none"; }

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
    {"num_query_groups", [](Config& c, const Json& v) { c.model.num_query_groups = v; }},
    {"kv_channels", [](Config& c, const Json& v) { c.model.kv_channels = v; }},
    {"ffn_hidden_size", [](Config& c, const Json& v) { c.model.ffn_hidden_size = v; }},
    {"layernorm_epsilon", [](Config& c, const Json& v) { c.model.layernorm_epsilon = v; }},
    {"normalization", [](Config& c, const Json& v) { c.model.normalization = v.get<std::string>(); }},
    {"gated_linear_unit", [](Config& c, const Json& v) { c.model.gated_linear_unit = v; }},
    {"add_bias_linear", [](Config& c, const Json& v) { c.model.add_bias_linear = v; }},
    {"add_qkv_bias", [](Config& c, const Json& v) { c.model.add_qkv_bias = v; }},
    {"qk_layernorm", [](Config& c, const Json& v) { c.model.qk_layernorm = v; }},
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
void dispatcher(Config& c, const Json& value) {
  const std::string word = value;
  c.model.moe_token_dispatcher_type = word == "flex" || word == "alltoall_seq" ? "alltoall" : word;
}

const Key kExpertKeys[] = {
    {"num_moe_experts", [](Config& c, const Json& v) { c.model.num_moe_experts = v; }},
    {"moe_layer_freq",
     [](Config& c, const Json& v) { c.model.moe_layer_freq = v.is_string() ? v.get<std::string>() : v.dump(); }},
    {"moe_ffn_hidden_size", [](Config& c, const Json& v) { c.model.moe_ffn_hidden_size = v; }},
    {"moe_router_topk", [](Config& c, const Json& v) { c.model.moe_router_topk = v; }},
    {"moe_router_score_function",
     [](Config& c, const Json& v) { c.model.moe_router_score_function = v.get<std::string>(); }},
    {"moe_router_pre_softmax", [](Config& c, const Json& v) { c.model.moe_router_pre_softmax = v; }},
    {"moe_router_num_groups", [](Config& c, const Json& v) { c.model.moe_router_num_groups = v; }},
    {"moe_router_group_topk", [](Config& c, const Json& v) { c.model.moe_router_group_topk = v; }},
    {"moe_router_topk_scaling_factor", [](Config& c, const Json& v) { c.model.moe_router_topk_scaling_factor = v; }},
    {"moe_router_enable_expert_bias", [](Config& c, const Json& v) { c.model.moe_router_enable_expert_bias = v; }},
    {"moe_router_bias_update_rate", [](Config& c, const Json& v) { c.model.moe_router_bias_update_rate = v; }},
    {"moe_router_load_balancing_type",
     [](Config& c, const Json& v) { c.model.moe_router_load_balancing_type = with_commas(v); }},
    {"moe_aux_loss_coeff", [](Config& c, const Json& v) { c.model.moe_aux_loss_coeff = with_commas(v); }},
    {"moe_z_loss_coeff", [](Config& c, const Json& v) { c.model.moe_z_loss_coeff = v; }},
    {"moe_router_dtype", [](Config& c, const Json& v) { c.model.moe_router_dtype = v.get<std::string>(); }},
    {"moe_expert_capacity_factor", [](Config& c, const Json& v) { c.model.moe_expert_capacity_factor = v; }},
    {"moe_pad_expert_input_to_capacity",
     [](Config& c, const Json& v) { c.model.moe_pad_expert_input_to_capacity = v; }},
    {"moe_token_drop_policy", [](Config& c, const Json& v) { c.model.moe_token_drop_policy = v.get<std::string>(); }},
    {"moe_token_dispatcher_type", dispatcher},
    {"moe_grouped_gemm", [](Config& c, const Json& v) { c.model.moe_grouped_gemm = v; }},
    {"moe_apply_probs_on_input", [](Config& c, const Json& v) { c.model.moe_apply_probs_on_input = v; }},
    {"moe_shared_expert_intermediate_size",
     [](Config& c, const Json& v) { c.model.moe_shared_expert_intermediate_size = v; }},
    {"moe_shared_expert_gate", [](Config& c, const Json& v) { c.model.moe_shared_expert_gate = v; }},
    {"moe_shared_expert_overlap", [](Config& c, const Json& v) { c.model.moe_shared_expert_overlap = v; }},
    {"expert_model_parallel_size", [](Config& c, const Json& v) { c.parallel.expert_model_parallel_size = v; }},
    {"expert_tensor_parallel_size", [](Config& c, const Json& v) { c.parallel.expert_tensor_parallel_size = v; }},
};

const Key kParallelKeys[] = {
    {"num_layers_in_first_pipeline_stage",
     [](Config& c, const Json& v) { c.parallel.decoder_first_pipeline_num_layers = v; }},
    {"num_layers_in_last_pipeline_stage",
     [](Config& c, const Json& v) { c.parallel.decoder_last_pipeline_num_layers = v; }},
    {"account_for_embedding_in_pipeline_split",
     [](Config& c, const Json& v) { c.parallel.account_for_embedding_in_pipeline_split = v; }},
    {"account_for_loss_in_pipeline_split",
     [](Config& c, const Json& v) { c.parallel.account_for_loss_in_pipeline_split = v; }},
    {"pipeline_model_parallel_layout",
     [](Config& c, const Json& v) { c.parallel.pipeline_model_parallel_layout = v; }},
    {"microbatch_group_size_per_vp_stage",
     [](Config& c, const Json& v) { c.parallel.microbatch_group_size_per_vp_stage = v; }},
    {"overlap_p2p_comm", [](Config& c, const Json& v) { c.parallel.overlap_p2p_comm = v; }},
    {"overlap_grad_reduce", [](Config& c, const Json& v) { c.parallel.overlap_grad_reduce = v; }},
    {"overlap_param_gather", [](Config& c, const Json& v) { c.parallel.overlap_param_gather = v; }},
    {"align_param_gather", [](Config& c, const Json& v) { c.parallel.align_param_gather = v; }},
    {"bucket_size", [](Config& c, const Json& v) { c.parallel.ddp_bucket_size = v; }},
    {"use_distributed_optimizer",
     [](Config& c, const Json& v) {
       if (v.get<bool>() && !c.parallel.sharding().any()) c.parallel.data_parallel_sharding_strategy = "optim";
     }},
    {"data_parallel_sharding_strategy",
     [](Config& c, const Json& v) { c.parallel.data_parallel_sharding_strategy = v.get<std::string>(); }},
    {"num_distributed_optimizer_instances",
     [](Config& c, const Json& v) { c.parallel.num_distributed_optimizer_instances = v; }},
};

const Key kTrainKeys[] = {
    {"calculate_per_token_loss", [](Config& c, const Json& v) { c.train.calculate_per_token_loss = v; }},
    {"adam_beta1", [](Config& c, const Json& v) { c.optim.adam_beta1 = v; }},
    {"adam_beta2", [](Config& c, const Json& v) { c.optim.adam_beta2 = v; }},
    {"adam_eps", [](Config& c, const Json& v) { c.optim.adam_eps = v; }},
    {"sgd_momentum", [](Config& c, const Json& v) { c.optim.sgd_momentum = v; }},
    {"muon_momentum", [](Config& c, const Json& v) { c.optim.muon_momentum = v; }},
    {"muon_nesterov", [](Config& c, const Json& v) { c.optim.muon_use_nesterov = v; }},
    {"muon_split_qkv", [](Config& c, const Json& v) { c.optim.muon_split_qkv = v; }},
    {"muon_num_ns_steps", [](Config& c, const Json& v) { c.optim.muon_num_ns_steps = v; }},
    {"muon_scale_mode", [](Config& c, const Json& v) { c.optim.muon_scale_mode = v.get<std::string>(); }},
    {"muon_extra_scale_factor", [](Config& c, const Json& v) { c.optim.muon_extra_scale_factor = v; }},
    {"muon_coefficient_type", [](Config& c, const Json& v) { c.optim.muon_coefficient_type = v.get<std::string>(); }},
    {"muon_fp32_matmul_prec", [](Config&, const Json& v) { require_word("muon_fp32_matmul_prec", v, {"highest"}); }},
    {"muon_tp_mode",
     [](Config&, const Json& v) {
       require_word("muon_tp_mode", v, {"duplicated", "distributed"});
     }},
    {"clip_grad", [](Config& c, const Json& v) { c.optim.clip_grad = v; }},
    {"weight_decay", [](Config& c, const Json& v) { c.optim.weight_decay = v; }},
    {"start_weight_decay", [](Config& c, const Json& v) { c.optim.start_weight_decay = v; }},
    {"end_weight_decay", [](Config& c, const Json& v) { c.optim.end_weight_decay = v; }},
    {"weight_decay_incr_style",
     [](Config& c, const Json& v) { c.optim.weight_decay_incr_style = v.get<std::string>(); }},
    {"lr_warmup_init", [](Config& c, const Json& v) { c.optim.lr_warmup_init = v; }},
    {"lr_decay_iters", [](Config& c, const Json& v) { c.optim.lr_decay_iters = v; }},
    {"lr_wsd_decay_style", [](Config& c, const Json& v) { c.optim.lr_wsd_decay_style = v.get<std::string>(); }},
    {"lr_wsd_decay_iters", [](Config& c, const Json& v) { c.optim.lr_wsd_decay_iters = v; }},
    {"decoupled_lr", [](Config& c, const Json& v) { c.optim.decoupled_lr = v; }},
    {"decoupled_min_lr", [](Config& c, const Json& v) { c.optim.decoupled_min_lr = v; }},
    {"apply_wd_to_qk_layernorm", [](Config& c, const Json& v) { c.optim.apply_wd_to_qk_layernorm = v; }},
    {"optimizer_cpu_offload", [](Config& c, const Json& v) { c.optim.optimizer_cpu_offload = v; }},
    {"main_params_dtype", [](Config& c, const Json& v) { c.optim.main_params_dtype = dtype_word(v); }},
    {"exp_avg_dtype", [](Config& c, const Json& v) { c.optim.exp_avg_dtype = dtype_word(v); }},
    {"exp_avg_sq_dtype", [](Config& c, const Json& v) { c.optim.exp_avg_sq_dtype = dtype_word(v); }},
    {"store_param_remainders", [](Config& c, const Json& v) { c.optim.store_param_remainders = v; }},
};

const Key kPrecisionKeys[] = {
    {"fp32_residual_connection", residual},
    {"grad_reduce_in_fp32",
     [](Config& c, const Json& v) {
       if (!v.get<bool>() && c.precision.half()) c.precision.main_grads_dtype = "params";
     }},
    {"loss_scale", [](Config& c, const Json& v) { c.precision.loss_scale = v; }},
    {"initial_loss_scale", [](Config& c, const Json& v) { c.precision.initial_loss_scale = v; }},
    {"min_loss_scale", [](Config& c, const Json& v) { c.precision.min_loss_scale = v; }},
    {"loss_scale_window", [](Config& c, const Json& v) { c.precision.loss_scale_window = v; }},
    {"hysteresis", [](Config& c, const Json& v) { c.precision.hysteresis = v; }},
    {"grad_norm_skip_threshold", [](Config& c, const Json& v) { c.precision.grad_norm_skip_threshold = v; }},
    {"recompute_granularity",
     [](Config& c, const Json& v) { c.memory.recompute_granularity = v.get<std::string>(); }},
    {"recompute_method", [](Config& c, const Json& v) { c.memory.recompute_method = v.get<std::string>(); }},
    {"recompute_num_layers", [](Config& c, const Json& v) { c.memory.recompute_num_layers = v; }},
    {"recompute_modules", recompute_modules},
    {"distribute_saved_activations", [](Config& c, const Json& v) { c.memory.distribute_saved_activations = v; }},
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
