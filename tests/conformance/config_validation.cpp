// config_validation.json: values that Megatron's TransformerConfig accepts, resolves and rejects, as keyword
// arguments over a base of 4 layers, width 32, 4 heads, pipeline messages in fp32. Compares acceptance and the
// resolved values of dense models, never wording. A case with an argument of an unsupported part waits.
#include <map>
#include <string>

#include "config/experts.h"
#include "conformance/report.h"
#include "megatron/oracle/transformer_config.h"

namespace metroplex::conformance {

using megatron::TransformerConfig;

namespace {

using Setter = void (*)(TransformerConfig& settings, const Json& value);

std::optional<int64_t> maybe(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional<int64_t>(value.get<int64_t>());
}

std::optional<std::string> maybe_text(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional<std::string>(value.get<std::string>());
}

std::vector<std::string> words(const Json& value) {
  return value.is_null() ? std::vector<std::string>{} : value.get<std::vector<std::string>>();
}

// "a,b" is a list of two; "" of none.
std::vector<std::string> word_or_words(const Json& value) {
  if (!value.is_string()) return words(value);
  const std::string text = value.get<std::string>();
  return text.empty() ? std::vector<std::string>{} : config::comma_list(text);
}

// torch's functions were recorded by their repr: "<function relu at 0x7f...>" or "<built-in function gelu>".
std::string function_name(const std::string& repr) {
  static const std::string kMark = "function ";
  const size_t mark = repr.find(kMark);
  if (mark == std::string::npos) return repr;
  const size_t begin = mark + kMark.size();
  return repr.substr(begin, repr.find_first_of(" >", begin) - begin);
}

const std::map<std::string, Setter> kSetters = {
    {"num_layers", [](auto& s, const Json& value) { s.num_layers = value; }},
    {"hidden_size", [](auto& s, const Json& value) { s.hidden_size = value; }},
    {"num_attention_heads", [](auto& s, const Json& value) { s.num_attention_heads = value; }},
    {"num_query_groups", [](auto& s, const Json& value) { s.num_query_groups = maybe(value); }},
    {"ffn_hidden_size", [](auto& s, const Json& value) { s.ffn_hidden_size = maybe(value); }},
    {"kv_channels", [](auto& s, const Json& value) { s.kv_channels = maybe(value); }},
    {"tensor_model_parallel_size", [](auto& s, const Json& value) { s.tp = value; }},
    {"pipeline_model_parallel_size", [](auto& s, const Json& value) { s.pp = value; }},
    {"virtual_pipeline_model_parallel_size", [](auto& s, const Json& value) { s.vpp = maybe(value); }},
    {"expert_model_parallel_size", [](auto& s, const Json& value) { s.ep = value; }},
    {"expert_tensor_parallel_size", [](auto& s, const Json& value) { s.etp = maybe(value); }},
    {"cp_comm_type",
     [](auto& s, const Json& value) {
       if (value.is_array()) s.cp_comm_types = words(value);
     }},
    {"sequence_parallel", [](auto& s, const Json& value) { s.sequence_parallel = value; }},
    {"pipeline_dtype", [](auto& s, const Json& value) { s.has_pipeline_dtype = !value.is_null(); }},
    {"microbatch_group_size_per_vp_stage",
     [](auto& s, const Json& value) { s.microbatch_group_size_per_vp_stage = maybe(value); }},
    {"num_layers_in_first_pipeline_stage", [](auto& s, const Json& value) { s.first_stage_layers = maybe(value); }},
    {"num_layers_in_last_pipeline_stage", [](auto& s, const Json& value) { s.last_stage_layers = maybe(value); }},
    {"account_for_embedding_in_pipeline_split", [](auto& s, const Json& value) { s.account_for_embedding = value; }},
    {"account_for_loss_in_pipeline_split", [](auto& s, const Json& value) { s.account_for_loss = value; }},
    {"pipeline_model_parallel_layout",
     [](auto& s, const Json& value) {
       if (!value.is_null()) s.layout = value.get<std::string>();
     }},
    {"activation_func", [](auto& s, const Json& value) { s.activation = function_name(value); }},
    {"gated_linear_unit", [](auto& s, const Json& value) { s.gated_linear_unit = value; }},
    {"add_bias_linear", [](auto& s, const Json& value) { s.add_bias_linear = value; }},
    {"bias_activation_fusion", [](auto& s, const Json& value) { s.bias_activation_fusion = value; }},
    {"defer_embedding_wgrad_compute", [](auto& s, const Json& value) { s.defer_embedding_wgrad_compute = value; }},
    {"gradient_accumulation_fusion", [](auto& s, const Json& value) { s.gradient_accumulation_fusion = value; }},
    {"wgrad_deferral_limit", [](auto& s, const Json& value) { s.wgrad_deferral_limit = value; }},
    {"overlap_p2p_comm", [](auto& s, const Json& value) { s.overlap_p2p_comm = value; }},
    {"batch_p2p_comm", [](auto& s, const Json& value) { s.batch_p2p_comm = value; }},
    {"overlap_p2p_comm_warmup_flush", [](auto& s, const Json& value) { s.overlap_p2p_comm_warmup_flush = value; }},
    {"fp16", [](auto& s, const Json& value) { s.fp16 = value; }},
    {"bf16", [](auto& s, const Json& value) { s.bf16 = value; }},
    {"recompute_granularity", [](auto& s, const Json& value) { s.recompute_granularity = maybe_text(value); }},
    {"recompute_method", [](auto& s, const Json& value) { s.recompute_method = maybe_text(value); }},
    {"recompute_num_layers", [](auto& s, const Json& value) { s.recompute_num_layers = maybe(value); }},
    {"recompute_modules",
     [](auto& s, const Json& value) {
       if (!value.is_null()) s.recompute_modules = words(value);
     }},
    {"distribute_saved_activations", [](auto& s, const Json& value) { s.distribute_saved_activations = value; }},
    {"cpu_offloading", [](auto& s, const Json& value) { s.cpu_offloading = value; }},
    {"cpu_offloading_num_layers", [](auto& s, const Json& value) { s.cpu_offloading_num_layers = value; }},
    {"fine_grained_activation_offloading", [](auto& s, const Json& value) { s.fine_grained_activation_offloading = value; }},
    {"offload_modules", [](auto& s, const Json& value) { s.offload_modules = words(value); }},
    {"fine_grained_offloading_max_inflight_offloads",
     [](auto& s, const Json& value) { s.max_inflight_offloads = maybe(value); }},
    {"hidden_dropout", [](auto& s, const Json& value) { s.hidden_dropout = value; }},
    {"attention_dropout", [](auto& s, const Json& value) { s.attention_dropout = value; }},
    {"enable_cuda_graph", [](auto& s, const Json& value) { s.cuda_graphs.enable_cuda_graph = value; }},
    {"external_cuda_graph", [](auto& s, const Json& value) { s.cuda_graphs.external_cuda_graph = value; }},
    {"cuda_graph_impl", [](auto& s, const Json& value) { s.cuda_graphs.impl = value; }},
    {"cuda_graph_modules", [](auto& s, const Json& value) { s.cuda_graphs.modules = word_or_words(value); }},
    {"cuda_graph_scope",
     [](auto& s, const Json& value) {
       if (!value.is_null()) s.cuda_graphs.scope = word_or_words(value);
     }},
    {"cuda_graph_warmup_steps", [](auto& s, const Json& value) { s.cuda_graphs.warmup_steps = value; }},
    {"inference_cuda_graph_scope", [](auto& s, const Json& value) { s.cuda_graphs.inference_scope = maybe_text(value); }},
};

void set_balancing(TransformerConfig& config, const Json& value) {
  config.experts.balancing = value.is_array() ? words(value) : std::vector<std::string>{value.get<std::string>()};
}

void set_layer_freq(TransformerConfig& config, const Json& value) {
  config.experts.some_layers_dense = value.is_array() ? std::find(value.begin(), value.end(), Json(0)) != value.end()
                                                      : value.is_number() && value.get<int64_t>() > 1;
}

std::optional<double> maybe_real(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
}

const std::map<std::string, Setter> kExpertSetters = {
    {"num_moe_experts", [](auto& s, const Json& value) { s.experts.num_moe_experts = maybe(value); }},
    {"moe_ffn_hidden_size", [](auto& s, const Json& value) { s.experts.moe_ffn_hidden_size = maybe(value); }},
    {"moe_layer_freq", set_layer_freq},
    {"moe_router_topk", [](auto& s, const Json& value) { s.experts.topk = value; }},
    {"moe_router_score_function", [](auto& s, const Json& value) { s.experts.score_function = value; }},
    {"moe_router_pre_softmax", [](auto& s, const Json& value) { s.experts.pre_softmax = value; }},
    {"moe_router_num_groups", [](auto& s, const Json& value) { s.experts.num_groups = maybe(value); }},
    {"moe_router_group_topk",
     [](auto& s, const Json& value) {
       if (!value.is_null() && value != 0) s.experts.group_topk = value.get<int64_t>();
     }},
    {"moe_router_topk_limited_devices",
     [](auto& s, const Json& value) { s.expert_options.topk_limited_devices = maybe(value); }},
    {"moe_router_enable_expert_bias", [](auto& s, const Json& value) { s.experts.expert_bias = value; }},
    {"moe_router_load_balancing_type", set_balancing},
    {"moe_expert_capacity_factor", [](auto& s, const Json& value) { s.experts.capacity_factor = maybe_real(value); }},
    {"moe_pad_expert_input_to_capacity", [](auto& s, const Json& value) { s.experts.pad_to_capacity = value; }},
    {"moe_expert_rank_capacity_factor",
     [](auto& s, const Json& value) { s.expert_options.rank_capacity_factor = maybe_real(value); }},
    {"moe_token_dispatcher_type", [](auto& s, const Json& value) { s.experts.dispatcher = value; }},
    {"moe_flex_dispatcher_backend", [](auto& s, const Json& value) { s.expert_options.flex_backend = value; }},
    {"moe_enable_deepep", [](auto& s, const Json& value) { s.expert_options.enable_deepep = value; }},
    {"moe_deepep_num_sms", [](auto& s, const Json& value) { s.expert_options.deepep_num_sms = maybe(value); }},
    {"moe_hybridep_num_sms", [](auto& s, const Json& value) { s.expert_options.hybridep_num_sms = maybe(value); }},
    {"moe_flex_dispatcher_num_sms", [](auto& s, const Json& value) { s.expert_options.flex_num_sms = maybe(value); }},
    {"moe_dispatch_fwd_dtype", [](auto& s, const Json& value) { s.expert_options.dispatch_fwd_dtype = value; }},
    {"moe_combine_bwd_dtype", [](auto& s, const Json& value) { s.expert_options.combine_bwd_dtype = value; }},
    {"moe_grouped_gemm", [](auto& s, const Json& value) { s.experts.grouped_gemm = value; }},
    {"moe_use_grouped_tensor", [](auto& s, const Json& value) { s.expert_options.use_grouped_tensor = value; }},
    {"use_transformer_engine_op_fuser", [](auto& s, const Json& value) { s.expert_options.op_fuser = value; }},
    {"moe_single_grouped_weight", [](auto& s, const Json& value) { s.expert_options.single_grouped_weight = value; }},
    {"moe_single_grouped_bias", [](auto& s, const Json& value) { s.expert_options.single_grouped_bias = value; }},
    {"moe_router_padding_for_quantization",
     [](auto& s, const Json& value) {
       s.expert_options.padding_for_quantization |= value.is_boolean() && value.get<bool>();
     }},
    {"moe_router_padding_for_fp8",
     [](auto& s, const Json& value) {
       s.expert_options.padding_for_quantization |= value.is_boolean() && value.get<bool>();
     }},
    {"moe_permute_fusion", [](auto& s, const Json& value) { s.expert_options.permute_fusion = value; }},
    {"moe_shared_expert_intermediate_size", [](auto& s, const Json& value) { s.experts.shared_size = maybe(value); }},
    {"moe_shared_expert_overlap", [](auto& s, const Json& value) { s.experts.shared_overlap = value; }},
    {"moe_layer_recompute", [](auto& s, const Json& value) { s.expert_options.layer_recompute = value; }},
    {"moe_input_jitter_eps", [](auto& s, const Json& value) { s.expert_options.input_jitter = !value.is_null(); }},
    {"moe_paged_stash", [](auto& s, const Json& value) { s.expert_options.paged_stash = value; }},
    {"overlap_moe_expert_parallel_comm", [](auto& s, const Json& value) { s.expert_options.overlap_comm = value; }},
    {"ep_overlap_early_attn_memory_release",
     [](auto& s, const Json& value) { s.expert_options.early_memory_release = value; }},
    {"overlap_dispatch_backward_with_experts_wgrad",
     [](auto& s, const Json& value) { s.expert_options.overlap_dispatch_wgrad = value; }},
    {"delay_wgrad_compute", [](auto& s, const Json& value) { s.expert_options.delay_wgrad = value; }},
    {"variable_seq_lengths", [](auto& s, const Json& value) { s.expert_options.variable_seq_lengths = value; }},
};

const Setter* find_setter(const std::string& name) {
  for (const auto* setters : {&kSetters, &kExpertSetters}) {
    if (const auto found = setters->find(name); found != setters->end()) return &found->second;
  }
  return nullptr;
}

// Arguments that TransformerConfig accepts without a rule. moe_aux_loss_coeff is read with the kinds of balancing
// (run_case).
const std::vector<std::string> kWithoutRule = {"normalization",
                                               "context_parallel_size",
                                               "hierarchical_context_parallel_sizes",
                                               "layernorm_epsilon",
                                               "add_qkv_bias",
                                               "init_method_std",
                                               "qk_layernorm",
                                               "calculate_per_token_loss",
                                               "params_dtype",
                                               "deterministic_mode",
                                               "fp32_residual_connection",
                                               "moe_aux_loss_coeff",
                                               "moe_z_loss_coeff",
                                               "moe_token_dropping",
                                               "moe_token_drop_policy",
                                               "moe_router_topk_scaling_factor",
                                               "moe_router_dtype",
                                               "moe_router_bias_update_rate",
                                               "moe_router_force_load_balancing",
                                               "moe_router_force_biased",
                                               "moe_enable_routing_replay",
                                               "moe_router_fusion",
                                               "moe_router_quantile_balancing_ema",
                                               "moe_per_layer_logging",
                                               "moe_apply_probs_on_input",
                                               "moe_latent_size",
                                               "moe_shared_expert_gate",
                                               "moe_shared_expert_glu_interleave_size",
                                               "moe_permute_fusion_into_hybridep",
                                               "moe_hybridep_pad_uneven_dispatch_inputs",
                                               "moe_pad_experts_for_cuda_graph_inference",
                                               "cuda_graph_use_single_mempool",
                                               "cuda_graph_retain_backward_graph",
                                               "moe_paged_stash_page_size",
                                               "moe_paged_stash_buffer_size_factor_cuda",
                                               "moe_paged_stash_buffer_size_factor_cpu"};

// The first matching prefix names the part that a case waits for.
const std::pair<const char*, const char*> kLater[] = {
    {"cpu_offloading_", "offload"},
    {"min_offloaded", "offload"},
    {"activation_offload", "offload"},
    {"fp8", "low precision"},
    {"fp4", "low precision"},
    {"first_last_layers_bf16", "low precision"},
    {"multi_latent", "multi-latent attention"},
    {"rotary_interleaved", "multi-latent attention"},
    {"mtp_", "multi-token prediction"},
};

// "" if every argument is known, else the part that the case waits for.
std::string needs_key(const Json& kwargs) {
  std::string unknown;
  // Modules of layers that belong to unsupported parts.
  static const std::vector<std::string> kOtherLayers{"gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc"};
  for (const std::string& module : words(kwargs.value("recompute_modules", Json()))) {
    if (std::find(kOtherLayers.begin(), kOtherLayers.end(), module) != kOtherLayers.end()) return "module " + module;
  }
  for (const auto& [name, value] : kwargs.items()) {
    const bool known = find_setter(name) != nullptr ||
                       std::find(kWithoutRule.begin(), kWithoutRule.end(), name) != kWithoutRule.end();
    for (const auto& [prefix, part] : kLater) {
      if (!known && name.rfind(prefix, 0) == 0) return part;
    }
    if (!known || (name == "pipeline_model_parallel_layout" && value.is_array())) unknown = "argument " + name;
  }
  return unknown;
}

Json optional_json(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(nullptr); }

std::string compare_resolved(const TransformerConfig& config, const Json& expected) {
  const std::map<std::string, Json> got = {
      {"ffn_hidden_size", optional_json(config.ffn_hidden_size)},
      {"kv_channels", optional_json(config.kv_channels)},
      {"num_query_groups", optional_json(config.num_query_groups)},
      {"virtual_pipeline_model_parallel_size", optional_json(config.vpp)},
      {"expert_tensor_parallel_size", optional_json(config.etp)},
      {"microbatch_group_size_per_vp_stage", optional_json(config.microbatch_group_size_per_vp_stage)},
      {"recompute_granularity", config.recompute_granularity ? Json(*config.recompute_granularity) : Json()},
      {"recompute_modules", config.recompute_modules.value_or(std::vector<std::string>{})},
      {"moe_ffn_hidden_size", optional_json(config.experts.moe_ffn_hidden_size)},
      {"cuda_graph_impl", config.graphs.impl},
      {"cuda_graph_modules", config.graphs.modules},
      {"cuda_graph_warmup_steps", config.cuda_graphs.warmup_steps},
  };
  for (const auto& [name, value] : got) {  // the other recorded values belong to parts that wait
    if (!expected.contains(name)) continue;
    if (const std::string difference = compare(value, expected.at(name)); !difference.empty())
      return name + ": " + difference;
  }
  return "";
}

std::string run_case(const Json& one) {
  TransformerConfig settings;
  settings.num_layers = 4;
  settings.hidden_size = 32;
  settings.num_attention_heads = 4;
  for (const auto& [name, value] : one.at("kwargs").items()) {
    if (const Setter* setter = find_setter(name)) (*setter)(settings, value);
  }
  // A list of kinds requires a list of coefficients; one kind accepts either.
  const Json kinds = one.at("kwargs").value("moe_router_load_balancing_type", Json());
  const Json coefficients = one.at("kwargs").value("moe_aux_loss_coeff", Json(0.0));
  if (kinds.is_array()) settings.experts.num_coefficients = coefficients.is_array() ? coefficients.size() : 0;
  const auto found = megatron::violations(settings);
  const bool expected = one.at("ok");
  if (expected && !found.empty()) return "refused: " + found[0].key + " " + found[0].rule;
  if (!expected && found.empty()) return "accepted, expected " + one.value("error", std::string("a refusal"));
  return expected ? compare_resolved(megatron::resolve(settings), one.value("resolved", Json::object())) : "";
}

}  // namespace

void run_config_validation(const Json& file, Report& report) {
  for (const Json& one : cases(file, "cases")) {
    const std::string name = one.value("name", std::string("case")), part = needs_key(one.at("kwargs"));
    if (part.empty()) {
      report.check(name, [&] { return run_case(one); });
    } else {
      report.wait(name, part);
    }
  }
}

}  // namespace metroplex::conformance
