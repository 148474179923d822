#include "config/family.h"

#include "base/error.h"

namespace metroplex::config {

static const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {"gpt", false, {}},
      {"codegeex", true, {}},
      {"llama",
       false,
       {{"model.normalization", "RMSNorm"},
        {"model.position_embedding_type", "rope"},
        {"model.activation", "silu"},
        {"model.gated_linear_unit", "true"},
        {"model.add_bias_linear", "false"},
        {"model.untie_embeddings_and_output_weights", "true"}}},
      {"mixtral",
       false,
       {{"model.normalization", "RMSNorm"},
        {"model.position_embedding_type", "rope"},
        {"model.rotary_base", "1000000.0"},
        {"model.activation", "silu"},
        {"model.gated_linear_unit", "true"},
        {"model.add_bias_linear", "false"},
        {"model.untie_embeddings_and_output_weights", "true"},
        {"model.num_moe_experts", "8"}}},
      {"qwen3_moe",
       false,
       {{"model.normalization", "RMSNorm"},
        {"model.position_embedding_type", "rope"},
        {"model.rotary_base", "1000000.0"},
        {"model.layernorm_epsilon", "1e-6"},
        {"model.activation", "silu"},
        {"model.gated_linear_unit", "true"},
        {"model.add_bias_linear", "false"},
        {"model.qk_layernorm", "true"},
        {"model.untie_embeddings_and_output_weights", "true"},
        {"model.num_moe_experts", "128"},
        {"model.moe_router_topk", "8"}}},
  };
  return kFamilies;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.name);
  return names;
}

const Family* find_family(const std::string& name) {
  for (const Family& family : families()) {
    if (name == family.name) return &family;
  }
  return nullptr;
}

const Family& family(const std::string& name) {
  if (const Family* found = find_family(name)) return *found;
  const std::string nearest = base::nearest_name(name, family_names());
  base::throw_error("config", base::concat("model.family = '", name, "' is unknown",
                                           nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
}

}  // namespace metroplex::config
