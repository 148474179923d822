#include "megatron/transformer_config.h"

#include <algorithm>

#include "base/error.h"
#include "config/layout.h"

namespace metroplex::megatron {

namespace {

// The rules about what only Megatron has.
class Checker {
 public:
  explicit Checker(const TransformerConfig& settings) : s_(settings) {}

  std::vector<config::Violation> run() {
    messages();
    fusions();
    precision();
    offload();
    return std::move(list_);
  }

 private:
  void messages() {
    if (s_.pp > 1 && !s_.has_pipeline_dtype) {
      refuse(list_, "parallel.pipeline_model_parallel_size", s_.pp, "needs the number format that stages exchange",
             "name one");
    }
    if (s_.defer_embedding_wgrad_compute &&
        (s_.pp == 1 || !s_.gradient_accumulation_fusion || s_.wgrad_deferral_limit < 0)) {
      refuse(list_, "defer_embedding_wgrad_compute", "true",
             "needs a pipeline, fused gradient accumulation and a deferral limit of at least 0", "turn it off");
    }
    if (s_.overlap_p2p_comm_warmup_flush && (!s_.overlap_p2p_comm || s_.batch_p2p_comm)) {
      refuse(list_, "overlap_p2p_comm_warmup_flush", "true", "needs parallel.overlap_p2p_comm and unbatched messages",
             "turn it off");
    }
  }

  void fusions() {
    if (!s_.bias_activation_fusion) return;
    const bool fusible = s_.activation == "gelu" || s_.activation == "silu" || s_.activation == "quick_gelu";
    if (!fusible || (s_.activation == "gelu" && !s_.gated_linear_unit && !s_.add_bias_linear) ||
        (s_.activation == "quick_gelu" && !s_.gated_linear_unit)) {
      refuse(list_, "model.activation", s_.activation, "cannot be fused with the bias", "turn the fusion off");
    }
  }

  void precision() {
    if (s_.fp16 && s_.bf16)
      refuse(list_, "precision.params_dtype", "fp16 and bf16", "must be one format", "choose one");
  }

  // Megatron's two ways of moving activations to the host; memory.offload_activations is neither.
  void offload() {
    if (s_.cpu_offloading && (s_.cpu_offloading_num_layers < 0 || s_.cpu_offloading_num_layers >= s_.num_layers)) {
      refuse(list_, "cpu_offloading_num_layers", s_.cpu_offloading_num_layers,
             base::concat("must be less than model.num_layers = ", s_.num_layers), "keep the last layer's");
    }
    if (s_.cpu_offloading && (s_.pp > 1 || s_.recompute_granularity)) {
      refuse(list_, "cpu_offloading", "true", "works without a pipeline and without recompute only", "turn it off");
    }
    if (!s_.fine_grained_activation_offloading) return;
    static const std::vector<std::string> kModules = {"attn_norm", "qkv_linear", "core_attn", "attn_proj",
                                                      "mlp_norm"};
    if (s_.cpu_offloading)
      refuse(list_, "fine_grained_activation_offloading", "true", "excludes cpu_offloading", "keep one");
    if (s_.offload_modules.empty())
      refuse(list_, "offload_modules", "", "must be given with fine_grained_activation_offloading",
             "name some modules");
    const auto among = [](const std::string& module, const std::vector<std::string>& modules) {
      return std::find(modules.begin(), modules.end(), module) != modules.end();
    };
    for (const std::string& module : s_.offload_modules) {
      if (!among(module, kModules))
        refuse(list_, "offload_modules", module, "is no module of a dense layer whose input is kept", "name another");
    }
    if (among("attn_proj", s_.offload_modules) && !among("core_attn", s_.offload_modules)) {
      refuse(list_, "offload_modules", "attn_proj", "needs core_attn beside it, whose backward reads the same tensor",
             "add core_attn");
    }
  }

  const TransformerConfig& s_;
  std::vector<config::Violation> list_;
};

}  // namespace

std::vector<config::Violation> violations(const TransformerConfig& settings) {
  std::vector<config::Violation> list = config::transformer_violations(settings);
  for (config::Violation& violation : Checker(settings).run()) list.push_back(std::move(violation));
  return list;
}

TransformerConfig resolved(TransformerConfig s) {
  if (!s.ffn_hidden_size) s.ffn_hidden_size = 4 * s.hidden_size;
  if (!s.kv_channels) s.kv_channels = s.hidden_size / s.num_attention_heads;
  if (!s.num_query_groups) s.num_query_groups = s.num_attention_heads;
  if (!s.etp) s.etp = s.tp;
  if (!s.microbatch_group_size_per_vp_stage) s.microbatch_group_size_per_vp_stage = s.pp;
  if (!s.recompute_modules) s.recompute_modules = {"core_attn"};
  std::string problem;
  if (const auto stages = s.layout ? config::unrolled_layout(*s.layout, problem) : std::nullopt; stages && !s.vpp) {
    const int64_t virtual_stages = static_cast<int64_t>(stages->size()) / s.pp;
    if (virtual_stages > 1) s.vpp = virtual_stages;
  }
  return s;
}

}  // namespace metroplex::megatron
