// config_validation.json: what Megatron's TransformerConfig accepts, resolves to and refuses, in terms of its own
// keyword arguments over a base of 4 layers, width 32, 4 heads, pipeline messages in fp32. Accepted or not and the
// resolved values of dense models are compared, never wording. A case with an argument of a later part waits.
#include <map>
#include <string>

#include "conformance/report.h"
#include "megatron/transformer_config.h"

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

// torch's functions were recorded by their repr: "<function relu at 0x7f...>" or "<built-in function gelu>".
std::string function_name(const std::string& repr) {
  static const std::string kMark = "function ";
  const size_t mark = repr.find(kMark);
  if (mark == std::string::npos) return repr;
  const size_t begin = mark + kMark.size();
  return repr.substr(begin, repr.find_first_of(" >", begin) - begin);
}

const std::map<std::string, Setter> kSetters = {
    {"num_layers", [](auto& s, const Json& v) { s.num_layers = v; }},
    {"hidden_size", [](auto& s, const Json& v) { s.hidden_size = v; }},
    {"num_attention_heads", [](auto& s, const Json& v) { s.num_attention_heads = v; }},
    {"num_query_groups", [](auto& s, const Json& v) { s.num_query_groups = maybe(v); }},
    {"ffn_hidden_size", [](auto& s, const Json& v) { s.ffn_hidden_size = maybe(v); }},
    {"kv_channels", [](auto& s, const Json& v) { s.kv_channels = maybe(v); }},
    {"tensor_model_parallel_size", [](auto& s, const Json& v) { s.tp = v; }},
    {"pipeline_model_parallel_size", [](auto& s, const Json& v) { s.pp = v; }},
    {"virtual_pipeline_model_parallel_size", [](auto& s, const Json& v) { s.vpp = maybe(v); }},
    {"expert_model_parallel_size", [](auto& s, const Json& v) { s.ep = v; }},
    {"expert_tensor_parallel_size", [](auto& s, const Json& v) { s.etp = maybe(v); }},
    {"sequence_parallel", [](auto& s, const Json& v) { s.sequence_parallel = v; }},
    {"pipeline_dtype", [](auto& s, const Json& v) { s.has_pipeline_dtype = !v.is_null(); }},
    {"microbatch_group_size_per_vp_stage",
     [](auto& s, const Json& v) { s.microbatch_group_size_per_vp_stage = maybe(v); }},
    {"num_layers_in_first_pipeline_stage", [](auto& s, const Json& v) { s.first_stage_layers = maybe(v); }},
    {"num_layers_in_last_pipeline_stage", [](auto& s, const Json& v) { s.last_stage_layers = maybe(v); }},
    {"account_for_embedding_in_pipeline_split", [](auto& s, const Json& v) { s.account_for_embedding = v; }},
    {"account_for_loss_in_pipeline_split", [](auto& s, const Json& v) { s.account_for_loss = v; }},
    {"pipeline_model_parallel_layout",
     [](auto& s, const Json& v) {
       if (!v.is_null()) s.layout = v.get<std::string>();
     }},
    {"activation_func", [](auto& s, const Json& v) { s.activation = function_name(v); }},
    {"gated_linear_unit", [](auto& s, const Json& v) { s.gated_linear_unit = v; }},
    {"add_bias_linear", [](auto& s, const Json& v) { s.add_bias_linear = v; }},
    {"bias_activation_fusion", [](auto& s, const Json& v) { s.bias_activation_fusion = v; }},
    {"defer_embedding_wgrad_compute", [](auto& s, const Json& v) { s.defer_embedding_wgrad_compute = v; }},
    {"gradient_accumulation_fusion", [](auto& s, const Json& v) { s.gradient_accumulation_fusion = v; }},
    {"wgrad_deferral_limit", [](auto& s, const Json& v) { s.wgrad_deferral_limit = v; }},
    {"overlap_p2p_comm", [](auto& s, const Json& v) { s.overlap_p2p_comm = v; }},
    {"batch_p2p_comm", [](auto& s, const Json& v) { s.batch_p2p_comm = v; }},
    {"overlap_p2p_comm_warmup_flush", [](auto& s, const Json& v) { s.overlap_p2p_comm_warmup_flush = v; }},
    {"fp16", [](auto& s, const Json& v) { s.fp16 = v; }},
    {"bf16", [](auto& s, const Json& v) { s.bf16 = v; }},
    {"recompute_granularity", [](auto& s, const Json& v) { s.recompute_granularity = maybe_text(v); }},
    {"recompute_method", [](auto& s, const Json& v) { s.recompute_method = maybe_text(v); }},
    {"recompute_num_layers", [](auto& s, const Json& v) { s.recompute_num_layers = maybe(v); }},
    {"recompute_modules",
     [](auto& s, const Json& v) {
       if (!v.is_null()) s.recompute_modules = words(v);
     }},
    {"distribute_saved_activations", [](auto& s, const Json& v) { s.distribute_saved_activations = v; }},
    {"cpu_offloading", [](auto& s, const Json& v) { s.cpu_offloading = v; }},
    {"cpu_offloading_num_layers", [](auto& s, const Json& v) { s.cpu_offloading_num_layers = v; }},
    {"fine_grained_activation_offloading", [](auto& s, const Json& v) { s.fine_grained_activation_offloading = v; }},
    {"offload_modules", [](auto& s, const Json& v) { s.offload_modules = words(v); }},
};

// Arguments that TransformerConfig takes for dense models without a rule of its own.
const std::vector<std::string> kWithoutRule = {
    "normalization", "layernorm_epsilon",  "hidden_dropout",       "attention_dropout",
    "add_qkv_bias",  "init_method_std",    "qk_layernorm",         "calculate_per_token_loss",
    "params_dtype",  "deterministic_mode", "variable_seq_lengths", "fp32_residual_connection"};

// The first matching prefix says which part a case waits for.
const std::pair<const char*, const char*> kLater[] = {
    {"moe_", "mixture of experts"},
    {"num_moe", "mixture of experts"},
    {"overlap_moe", "mixture of experts"},
    {"cuda_graph", "graph capture"},
    {"enable_cuda_graph", "graph capture"},
    {"external_cuda_graph", "graph capture"},
    {"cpu_offloading_", "offload"},
    {"min_offloaded", "offload"},
    {"activation_offload", "offload"},
    {"fp8", "low precision"},
    {"fp4", "low precision"},
    {"first_last_layers_bf16", "low precision"},
    {"context_parallel", "context parallelism"},
    {"cp_comm", "context parallelism"},
    {"hierarchical_context", "context parallelism"},
    {"multi_latent", "multi-latent attention"},
    {"rotary_interleaved", "multi-latent attention"},
    {"mtp_", "multi-token prediction"},
};

// "" when every argument is known, else what the case waits for.
std::string waits_for(const Json& kwargs) {
  std::string unknown;
  for (const std::string& module : words(kwargs.value("recompute_modules", Json()))) {
    if (module.rfind("moe", 0) == 0 || module == "shared_experts") return "mixture of experts";
  }
  for (const auto& [name, value] : kwargs.items()) {
    const bool known =
        kSetters.contains(name) || std::find(kWithoutRule.begin(), kWithoutRule.end(), name) != kWithoutRule.end();
    for (const auto& [prefix, part] : kLater) {
      if (!known && name.rfind(prefix, 0) == 0) return part;
    }
    if (!known || (name == "pipeline_model_parallel_layout" && value.is_array())) unknown = "argument " + name;
  }
  return unknown;
}

Json optional_json(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(nullptr); }

std::string compare_resolved(const TransformerConfig& s, const Json& expected) {
  const std::map<std::string, Json> got = {
      {"ffn_hidden_size", optional_json(s.ffn_hidden_size)},
      {"kv_channels", optional_json(s.kv_channels)},
      {"num_query_groups", optional_json(s.num_query_groups)},
      {"virtual_pipeline_model_parallel_size", optional_json(s.vpp)},
      {"expert_tensor_parallel_size", optional_json(s.etp)},
      {"microbatch_group_size_per_vp_stage", optional_json(s.microbatch_group_size_per_vp_stage)},
      {"recompute_granularity", s.recompute_granularity ? Json(*s.recompute_granularity) : Json()},
      {"recompute_modules", s.recompute_modules.value_or(std::vector<std::string>{})},
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
    if (const auto setter = kSetters.find(name); setter != kSetters.end()) setter->second(settings, value);
  }
  const auto found = megatron::violations(settings);
  const bool expected = one.at("ok");
  if (expected && !found.empty()) return "refused: " + found[0].key + " " + found[0].rule;
  if (!expected && found.empty()) return "accepted, expected " + one.value("error", std::string("a refusal"));
  return expected ? compare_resolved(megatron::resolved(settings), one.value("resolved", Json::object())) : "";
}

}  // namespace

void run_config_validation(const Json& file, Report& report) {
  for (const Json& one : cases(file, "cases")) {
    const std::string name = one.value("name", std::string("case")), part = waits_for(one.at("kwargs"));
    if (part.empty()) {
      report.check(name, [&] { return run_case(one); });
    } else {
      report.wait(name, part);
    }
  }
}

}  // namespace metroplex::conformance
