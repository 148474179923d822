// The text model of a directory. A multimodal directory has the text model's keys in text_config of config.json, and
// stores its weights under a prefix, next to those of the other models.
#pragma once

#include <optional>
#include <string>

#include "hf/config_reader.h"

namespace metroplex::hf {

struct TextPart {
  Json config;                // as in a directory of the text model alone
  std::string other_configs;  // "vision_config, audio_config": the models that are not read
  bool multimodal = false;

  // Returns the name of a stored tensor in a directory of the text model alone, or nothing if another model has it.
  std::optional<std::string> name(const std::string& stored) const;
};
TextPart find_text_part(const Json& config);

}  // namespace metroplex::hf
