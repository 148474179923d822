#include "run/compatible.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "base/error.h"
#include "config/experts.h"
#include "config/family.h"
#include "config/fields.h"
#include "config/load.h"
#include "config/neutral_keys.h"

namespace metroplex::run {
namespace {

using config::Config;
using config::Field;

const std::string kNoTokenizer = config::text_of(config::TokenizerType::none);

bool affects_model(const std::string& name, const Config& here, const Config& there) {
  if (config::is_neutral_key(name)) return false;
  const auto either = [&](config::PositionEmbedding type) {
    return here.model.position_embedding_type == type || there.model.position_embedding_type == type;
  };
  if (name == "moe_router_load_balancing_type") return config::sinkhorn(here.model) != config::sinkhorn(there.model);
  if (name == "moe_layer_freq") return config::moe_layers(here.model) != config::moe_layers(there.model);
  if (name == "max_position_embeddings") return either(config::PositionEmbedding::learned_absolute);
  if (name == "rotary_base" || name == "rotary_percent" || name == "use_rope_scaling")
    return either(config::PositionEmbedding::rope);
  if (name == "rope_type")
    return here.model.yarn() != there.model.yarn() || here.model.longrope() != there.model.longrope();
  if (name.starts_with("rope_scaling_")) return here.model.use_rope_scaling && there.model.use_rope_scaling;
  // The other families are one decoder with different presets, and every preset has its own key.
  if (name == "family")
    return config::family(here.model.family).top_query || config::family(there.model.family).top_query;
  return true;
}

void add_tokenizer(const text::TokenizerFiles* tokenizer, const files::Manifest& manifest, const Config& saved,
                   std::vector<Difference>& out) {
  if (tokenizer == nullptr || tokenizer->type == kNoTokenizer) return;
  const auto extra = nlohmann::json::parse(manifest.extra);
  const auto saved_tokenizer = extra.value("tokenizer", nlohmann::json());
  const std::string type =
      saved_tokenizer.is_object() ? saved_tokenizer.value("type", "") : saved.data.tokenizer_type.text();
  if (type.empty() || type == kNoTokenizer) return;
  if (type != tokenizer->type) {
    out.push_back({"data.tokenizer_type", tokenizer->type, type});
  } else if (saved_tokenizer.is_object() && saved_tokenizer.value("checksum", "") != tokenizer->checksum) {
    out.push_back({"data.tokenizer_model", "a file with checksum " + tokenizer->checksum,
                   "one with " + saved_tokenizer.value("checksum", "")});
  }
}

// Throws unless the adapters have the same configuration, except for dropout. Adapters of equal rank may differ in
// scale or target modules. A run with checkpoint.finetune may start from a model without adapters.
void check_adapters(const Config& config, const Config& saved, const std::string& path) {
  Config here = config, there = saved;
  if (here.peft.lora() && !there.peft.lora() && here.checkpoint.finetune) return;
  there.peft.lora_dropout = here.peft.lora_dropout;
  there.peft.from = here.peft.from;
  const std::vector<Field> left = config::fields(here), right = config::fields(there);
  for (size_t i = 0; i < left.size(); ++i) {
    const bool same = left[i].section != "peft" || config::to_yaml(left[i]) == config::to_yaml(right[i]);
    MPX_CHECK(same, "checkpoint", left[i].key(), " is ", config::to_text(left[i]), " here and was ",
              config::to_text(right[i]), " in '", path, "'; set it as in the checkpoint",
              there.peft.lora() ? ", or start from its export (metroplex convert --to hf)"
                                : ", or start from its weights: checkpoint.finetune");
  }
}

}  // namespace

std::vector<Difference> model_differences(const Config& config, const text::TokenizerFiles* tokenizer,
                                          const files::Manifest& manifest) {
  Config here = config, there = config::parse_saved(manifest.config_yaml);
  const std::vector<Field> left = config::fields(here), right = config::fields(there);
  std::vector<Difference> out;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].section != "model" || !affects_model(left[i].name, here, there)) continue;
    if (config::to_yaml(left[i]) != config::to_yaml(right[i]))
      out.push_back({left[i].key(), config::to_text(left[i]), config::to_text(right[i])});
  }
  add_tokenizer(tokenizer, manifest, there, out);
  return out;
}

std::vector<Difference> check_compatible(const Config& config, const text::TokenizerFiles* tokenizer,
                                         const files::Manifest& manifest, const std::string& path) {
  std::vector<Difference> allowed;
  std::string list, keys;
  for (Difference& difference : model_differences(config, tokenizer, manifest)) {
    const auto& allow = config.checkpoint.allow;
    if (std::find(allow.begin(), allow.end(), difference.key) != allow.end()) {
      allowed.push_back(std::move(difference));
      continue;
    }
    list += base::concat("\n  ", difference.key, " is ", difference.here, " here and was ", difference.there);
    keys += " " + difference.key;
  }
  check_adapters(config, config::parse_saved(manifest.config_yaml), path);
  MPX_CHECK(list.empty(), "checkpoint", "'", path,
            "' belongs to a different model: its tensors have a different shape or meaning here.", list,
            "\nSet them as in the checkpoint (metroplex inspect ", path,
            " --config), or continue anyway with --checkpoint.allow", keys);
  return allowed;
}

void check_optimizer(const Config& config, const files::Manifest& manifest, const std::string& path) {
  const std::string saved = config::parse_saved(manifest.config_yaml).optim.optimizer;
  MPX_CHECK(saved == config.optim.optimizer, "checkpoint", "optim.optimizer is ", config.optim.optimizer,
            " here and was ", saved, " in '", path,
            "', whose moments it cannot use; set it as in the checkpoint, or set checkpoint.no_load_optim to start "
            "with new ones");
}

}  // namespace metroplex::run
