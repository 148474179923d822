#include "hf/family.h"

#include "base/error.h"
#include "hf/decoder.h"

namespace metroplex::hf {

// A model is exported as the first family in this list that can represent it.
static constexpr const Family* kFamilies[] = {
    &kGpt2,         &kLlama,      &kMistral,    &kQwen2,      &kQwen3,      &kMixtral, &kQwen3Moe,
    &kQwen2Moe,     &kDeepseekV2, &kDeepseekV3, &kKimiK2,     &kGptOss,     &kGemma,   &kGemma2,
    &kGemma3,       &kSeedOss,    &kArcee,      &kNemotron,   &kStarcoder2, &kErnie45, &kGlm4,
    &kGlm4Moe,      &kSmolLm3,    &kGranite,    &kGraniteMoe, &kOlmo2,      &kOlmo3,   &kMiniMaxM2,
    &kHunYuanDense, &kHunYuanMoe, &kErnie45Moe, &kMinistral3, &kPhi3,       &kCohere2, &kQwen3Next,
    &kQwen35,       &kQwen35Moe,  &kMamba2,     &kNemotronH,  &kLlama4,     &kMiniMax, &kMiniMaxText01,
    &kMiniMaxM1};

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family* family : kFamilies) names.emplace_back(family->model_type);
  return names;
}

static std::string list() {
  std::string text;
  for (const std::string& name : family_names()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const Family& find_family(const std::string& model_type) {
  for (const Family* family : kFamilies) {
    if (model_type == family->model_type) return *family;
  }
  base::throw_error("hf", base::concat("config.json: model_type '", model_type,
                                       "' is not supported; supported families: ", list()));
}

Settings read_config(const Family& family, const Json& config) {
  ConfigReader reader(config);
  Settings settings = family.settings(reader);
  reader.refuse_unread(base::concat("model_type ", family.model_type));
  return settings;
}

const Family& family_for(const config::Model& model) {
  for (const Family* family : kFamilies) {
    const bool wanted = model.hf_model_type == family->model_type;
    if (wanted && (family->multi_token || model.mtp_num_layers == 0) && represents(*family, model)) return *family;
  }
  for (const Family* family : kFamilies) {
    if ((family->multi_token || model.mtp_num_layers == 0) && represents(*family, model)) return *family;
  }
  const auto without = [&](const Family* family) { return represents(*family, model); };
  if (model.mtp_num_layers > 0 && std::any_of(std::begin(kFamilies), std::end(kFamilies), without))
    base::throw_error(
        "hf",
        base::concat("model.mtp_num_layers = ", model.mtp_num_layers,
                     ": the transformers family of this model has no layers for multi-token prediction. To save "
                     "the model without them, load the checkpoint with checkpoint.finetune = true, "
                     "model.mtp_num_layers = 0 and checkpoint.allow = model.mtp_num_layers"));
  base::throw_error("hf", base::concat("no supported transformers family (", list(),
                                       ") has this combination of norms, biases, activation, positions and experts; "
                                       "metroplex inspect shows the section model"));
}

}  // namespace metroplex::hf
