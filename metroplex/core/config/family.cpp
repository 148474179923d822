#include "config/family.h"

#include <algorithm>

#include "base/error.h"
#include "config/fields.h"

namespace metroplex::config {

// RMSNorm, rotary positions, gated MLP, no biases (except qkv), plus the presets in `more`.
static std::vector<Preset> llama_with(const std::vector<Preset>& more) {
  std::vector<Preset> presets = {{"model.normalization", "RMSNorm", Means::only},
                                 {"model.position_embedding_type", "rope", Means::only},
                                 {"model.gated_linear_unit", "true", Means::only},
                                 {"model.add_bias_linear", "false", Means::only},
                                 {"model.activation", "silu"},
                                 {"model.untie_embeddings_and_output_weights", "true"}};
  presets.insert(presets.end(), more.begin(), more.end());
  return presets;
}

static const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {"gpt", false, {}},
      {"codegeex", true, {}},
      {"llama", false, llama_with({})},
      // arXiv 2401.04088
      {"mixtral", false,
       llama_with({{"model.rotary_base", "1000000.0"}, {"model.num_moe_experts", "8", Means::above_zero}})},
      // arXiv 2505.09388
      {"qwen3_moe", false,
       llama_with({{"model.rotary_base", "1000000.0"},
                   {"model.layernorm_epsilon", "1e-6"},
                   {"model.num_moe_experts", "128", Means::above_zero},
                   {"model.moe_router_topk", "8"},
                   {"model.qk_layernorm", "true", Means::only}})},
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

void check_family(const Model& model) {
  const Family* family = find_family(model.family);
  if (family == nullptr) return;
  Config config;
  config.model = model;
  const std::vector<Field> list = fields(config);
  std::string meaning;
  bool fits = true;
  for (const Preset& preset : family->presets) {
    if (preset.means == Means::free) continue;
    const auto field =
        std::find_if(list.begin(), list.end(), [&](const Field& each) { return each.key() == preset.key; });
    MPX_ASSERT(field != list.end(), "preset ", preset.key);
    const bool only = preset.means == Means::only;
    fits = fits && (only ? to_text(*field) == preset.value : to_text(*field) != "0");
    meaning += base::concat(meaning.empty() ? "" : ", ", field->name, " ", only ? preset.value : "above 0");
  }
  MPX_CHECK(fits, "models", "model.family = ", model.family, " requires ", meaning,
            "; set them, or use family gpt for other combinations");
}

}  // namespace metroplex::config
