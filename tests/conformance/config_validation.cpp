// config_validation.json: what Megatron's TransformerConfig accepts, resolves to and refuses, in terms of its own
// keyword arguments over a base of 4 layers, width 32, 4 heads, pipeline messages in fp32. Accepted or not and the
// resolved values of dense models are compared, never wording. A case with an argument of a later part waits.
#include <map>
#include <string>

#include "config/transformer_rules.h"
#include "conformance/report.h"

namespace metroplex::conformance {

using config::TransformerSettings;

namespace {

using Setter = void (*)(TransformerSettings& settings, const Json& value);

std::optional<int64_t> maybe(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional<int64_t>(value.get<int64_t>());
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
};

// Arguments that TransformerConfig takes for dense models without a rule of its own.
const std::vector<std::string> kWithoutRule = {
    "normalization", "layernorm_epsilon", "hidden_dropout",     "attention_dropout",    "init_method_std",
    "add_qkv_bias",  "qk_layernorm",      "deterministic_mode", "variable_seq_lengths", "calculate_per_token_loss"};

// The first matching prefix says which part a case waits for.
const std::pair<const char*, const char*> kLater[] = {
    {"moe_", "mixture of experts"},
    {"num_moe", "mixture of experts"},
    {"overlap_moe", "mixture of experts"},
    {"cuda_graph", "graph capture"},
    {"enable_cuda_graph", "graph capture"},
    {"external_cuda_graph", "graph capture"},
    {"recompute_", "recompute"},
    {"distribute_saved", "recompute"},
    {"cpu_offloading", "offload"},
    {"fine_grained_activation", "offload"},
    {"offload_", "offload"},
    {"fp8", "low precision"},
    {"fp4", "low precision"},
    {"fp16", "mixed precision"},
    {"bf16", "mixed precision"},
    {"params_dtype", "mixed precision"},
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
  for (const auto& [name, value] : kwargs.items()) {
    for (const auto& [prefix, part] : kLater) {
      if (name.rfind(prefix, 0) == 0) return part;
    }
    const bool known =
        kSetters.contains(name) || std::find(kWithoutRule.begin(), kWithoutRule.end(), name) != kWithoutRule.end();
    if (!known || (name == "pipeline_model_parallel_layout" && value.is_array())) unknown = "argument " + name;
  }
  return unknown;
}

Json optional_json(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(nullptr); }

std::string compare_resolved(const TransformerSettings& s, const Json& expected) {
  const std::map<std::string, Json> got = {
      {"ffn_hidden_size", optional_json(s.ffn_hidden_size)},
      {"kv_channels", optional_json(s.kv_channels)},
      {"num_query_groups", optional_json(s.num_query_groups)},
      {"virtual_pipeline_model_parallel_size", optional_json(s.vpp)},
      {"expert_tensor_parallel_size", optional_json(s.etp)},
      {"microbatch_group_size_per_vp_stage", optional_json(s.microbatch_group_size_per_vp_stage)},
  };
  for (const auto& [name, value] : got) {  // the other recorded values belong to parts that wait
    if (!expected.contains(name)) continue;
    if (const std::string difference = compare(value, expected.at(name)); !difference.empty())
      return name + ": " + difference;
  }
  return "";
}

std::string run_case(const Json& one) {
  TransformerSettings settings;
  settings.num_layers = 4;
  settings.hidden_size = 32;
  settings.num_attention_heads = 4;
  for (const auto& [name, value] : one.at("kwargs").items()) {
    if (const auto setter = kSetters.find(name); setter != kSetters.end()) setter->second(settings, value);
  }
  const auto violations = transformer_violations(settings);
  const bool expected = one.at("ok");
  if (expected && !violations.empty()) return "refused: " + violations[0].key + " " + violations[0].rule;
  if (!expected && violations.empty()) return "accepted, expected " + one.value("error", std::string("a refusal"));
  return expected ? compare_resolved(transformer_resolved(settings), one.value("resolved", Json::object())) : "";
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
