// flops_memory.json: floating-point operations of a step and the theoretical memory. All formulas are sums and
// products of at most a few dozen doubles: 1e-12 relative allows another order of summation.
#include "conformance/report.h"
#include "plan/model_flops.h"
#include "support/megatron_flops.h"
#include "support/theoretical_memory.h"

namespace metroplex::conformance {
namespace {

constexpr double kTolerance = 1e-12;

bool has(const Json& args, const char* key) { return args.contains(key) && !args.at(key).is_null(); }

int64_t number(const Json& args, const char* key, int64_t missing = 0) {
  return has(args, key) ? args.at(key).get<int64_t>() : missing;
}

bool flag(const Json& args, const char* key) { return has(args, key) && args.at(key).get<bool>(); }

// `every`: an int n marks the layers i with i % n == remainder, a list marks its ones.
std::vector<bool> pattern(const Json& every, int64_t num_layers, const std::function<bool(int64_t, int64_t)>& marks) {
  std::vector<bool> result;
  if (every.is_array()) {
    for (const Json& entry : every) result.push_back(entry.get<int64_t>() != 0);
    return result;
  }
  for (int64_t i = 0; i < num_layers; ++i) result.push_back(marks(i, every.get<int64_t>()));
  return result;
}

std::optional<test::MegatronExperts> read_experts(const Json& args) {
  const bool hybrid = has(args, "hybrid_layer_pattern");
  if (!has(args, "num_experts") && !hybrid) return std::nullopt;
  test::MegatronExperts experts;
  experts.num_experts = number(args, "num_experts");
  experts.router_topk = number(args, "moe_router_topk");
  experts.ffn_hidden_size = number(args, "moe_ffn_hidden_size", number(args, "ffn_hidden_size"));
  experts.shared_ffn_hidden_size = number(args, "moe_shared_expert_intermediate_size");
  experts.shared_expert_gate = flag(args, "moe_shared_expert_gate");
  experts.latent_size = number(args, "moe_latent_size");
  const Json every = has(args, "moe_layer_freq") ? args.at("moe_layer_freq") : Json(1);
  experts.layer_is_moe = pattern(every, number(args, "num_layers"), [](int64_t i, int64_t n) { return i % n == 0; });
  return experts;
}

test::MegatronShape read_shape(const Json& args) {
  test::MegatronShape shape;
  shape.num_layers = number(args, "num_layers");
  shape.hidden_size = number(args, "hidden_size");
  shape.num_attention_heads = number(args, "num_attention_heads");
  shape.num_query_groups =
      flag(args, "group_query_attention") ? number(args, "num_query_groups") : shape.num_attention_heads;
  shape.kv_channels = number(args, "kv_channels", shape.hidden_size / shape.num_attention_heads);
  shape.ffn_hidden_size = number(args, "ffn_hidden_size");
  shape.padded_vocab_size = number(args, "padded_vocab_size");
  shape.seq_length = number(args, "seq_length");
  shape.num_mtp_layers = number(args, "mtp_num_layers");
  shape.gated_linear_unit = flag(args, "swiglu");
  shape.attention_output_gate = flag(args, "attention_output_gate");
  shape.rms_norm = has(args, "normalization") && args.at("normalization") == "RMSNorm";
  shape.linear_bias = flag(args, "add_bias_linear");
  shape.tied_embedding = !flag(args, "untie_embeddings_and_output_weights");
  if (flag(args, "multi_latent_attention")) {
    plan::LatentShape latent;
    if (has(args, "q_lora_rank")) latent.q_lora_rank = number(args, "q_lora_rank");
    latent.kv_lora_rank = number(args, "kv_lora_rank");
    latent.qk_head_dim = number(args, "qk_head_dim");
    latent.qk_pos_emb_head_dim = number(args, "qk_pos_emb_head_dim");
    latent.v_head_dim = number(args, "v_head_dim");
    shape.latent = latent;
  }
  shape.all_experts = read_experts(args);
  if (shape.all_experts) shape.experts = *shape.all_experts;
  if (has(args, "experimental_attention_variant")) {
    test::LinearAttention linear{{number(args, "linear_key_head_dim"), number(args, "linear_value_head_dim"),
                                  number(args, "linear_num_key_heads"), number(args, "linear_num_value_heads"),
                                  number(args, "linear_conv_kernel_dim")}};
    linear.gdn2 = args.at("experimental_attention_variant") == "gdn2";
    linear.layer_is_linear = pattern(args.at("linear_attention_freq"), shape.num_layers + shape.num_mtp_layers,
                                     [](int64_t i, int64_t n) { return (i + 1) % n != 0; });
    shape.linear = linear;
    shape.delta_net = linear;
  }
  if (has(args, "hybrid_layer_pattern")) {
    shape.hybrid = test::HybridLayers{args.at("hybrid_layer_pattern").get<std::string>(),
                                      number(args, "mamba_state_dim", 128), number(args, "mamba_head_dim", 64),
                                      number(args, "mamba_num_groups", 8), number(args, "mamba_num_heads")};
  }
  for (size_t i = 0; i < static_cast<size_t>(shape.num_layers); ++i) {
    const bool is_linear = shape.linear && shape.linear->layer_is_linear[i];
    const bool is_moe = shape.all_experts && shape.all_experts->layer_is_moe[i];
    shape.layers.push_back({.delta_net = is_linear, .attention = !is_linear, .mlp = !is_moe, .experts = is_moe});
  }
  return shape;
}

test::MemoryLayout read_layout(const Json& args) {
  test::MemoryLayout layout;
  layout.tp = number(args, "tensor_model_parallel_size", 1);
  layout.pp = number(args, "pipeline_model_parallel_size", 1);
  layout.vpp = number(args, "virtual_pipeline_model_parallel_size");
  layout.dp = number(args, "data_parallel_size", 1);
  layout.ep = number(args, "expert_model_parallel_size", 1);
  layout.etp = number(args, "expert_tensor_parallel_size", layout.tp);
  layout.expert_dp = number(args, "world_size", 1) / (layout.etp * layout.ep * layout.pp);
  layout.distributed_optimizer = flag(args, "use_distributed_optimizer");
  layout.micro_batch_size = number(args, "micro_batch_size", 1);
  return layout;
}

std::string near(const char* what, double got, const Json& expected) {
  const auto problem = compare_near(got, expected.get<double>(), 0, kTolerance);
  return problem.empty() ? "" : std::string(what) + ": " + problem;
}

std::string check_flops(const Json& args, const Json& json) {
  const Json extra = json.value("extra", Json::object());
  plan::StepTokens tokens;
  tokens.batch_size = json.at("batch_size").get<int64_t>();
  if (has(extra, "total_real_tokens_in_batch"))
    tokens.num_tokens = extra.at("total_real_tokens_in_batch").get<double>();
  if (has(extra, "seqlen_squared_sum_in_batch")) {
    tokens.squared_length_sum = extra.at("seqlen_squared_sum_in_batch").get<double>();
  }
  const test::MegatronShape shape = read_shape(args);
  if (shape.plain()) {
    if (auto problem = near("flops", plan::step_flops(shape, tokens), json.at("flops")); !problem.empty())
      return problem;
  }
  return near("flops of all networks", test::megatron_flops(shape, tokens), json.at("flops"));
}

std::string check_memory(const Json& args, const Json& json) {
  const auto shape = read_shape(args);
  auto layout = read_layout(args);
  std::string problem = near("weight_and_optimizer_bytes", test::weight_and_optimizer_bytes(shape, layout),
                             json.at("weight_and_optimizer_bytes"));
  const auto each = [&](const char* list, double (*bytes)(const test::MegatronShape&, const test::MemoryLayout&)) {
    const Json by_microbatches = json.value(list, Json::object());
    for (const auto& [microbatches, expected] : by_microbatches.items()) {
      layout.num_microbatches.reset();
      if (microbatches != "null" && microbatches != "None") layout.num_microbatches = std::stoll(microbatches);
      if (problem.empty()) problem = near(list, bytes(shape, layout), expected);
    }
  };
  each("activation_bytes", test::activation_bytes);
  each("activation_bytes_without_sp", test::activation_bytes_without_sp);
  return problem;
}

}  // namespace

void run_flops_memory(const Json& file, Report& report) {
  const auto all = [&](const char* list, std::string (*check)(const Json&, const Json&)) {
    for (const Json& json : cases(file, list)) {
      Json args = file.value("default_args", Json::object());
      args.update(json.value("args", Json::object()));
      report.check(std::string(list) + " " + json.at("name").get<std::string>(), json,
                   [&] { return check(args, json); });
    }
  };
  all("flops", check_flops);
  all("memory", check_memory);
}

}  // namespace metroplex::conformance
