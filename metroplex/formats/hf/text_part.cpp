#include "hf/text_part.h"

#include <utility>

namespace metroplex::hf {

TextPart find_text_part(const Json& config) {
  TextPart out{config, "", false};
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return out;
  out.config = *text;
  out.multimodal = true;
  for (const auto& [key, value] : config.items()) {
    const bool shared = key == "dtype" || key == "torch_dtype" || key == "quantization_config" ||
                        key == "bos_token_id" || key == "eos_token_id" || key == "pad_token_id";
    const bool has_own = out.config.contains(key) && !out.config.at(key).is_null();
    // transformers 5 ties the embeddings by the outer key.
    if ((shared && !has_own) || key == "tie_word_embeddings") out.config[key] = value;
    if (key.ends_with("_config") && key != "text_config" && key != "quantization_config")
      out.other_configs += (out.other_configs.empty() ? "" : ", ") + key;
  }
  return out;
}

std::optional<std::string> TextPart::name(const std::string& stored) const {
  if (!multimodal) return stored;
  static constexpr std::pair<const char*, const char*> kPrefixes[] = {{"model.language_model.", "model."},
                                                                      {"language_model.model.", "model."},
                                                                      {"language_model.lm_head.", "lm_head."},
                                                                      {"lm_head.", "lm_head."}};
  for (const auto& [theirs, text] : kPrefixes) {
    if (stored.starts_with(theirs)) return text + stored.substr(std::string(theirs).size());
  }
  return std::nullopt;
}

}  // namespace metroplex::hf
