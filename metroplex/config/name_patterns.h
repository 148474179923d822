// Patterns over the global names of parameters, as keys list them: * stands for any text, ? for any one letter, and a
// pattern must fit the whole name.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

bool matches(const std::string& pattern, const std::string& name);
bool matches_any(const std::vector<std::string>& patterns, const std::string& name);

// Whether a training run updates the parameter: it fits some pattern of train.trainable, if there is any, and none of
// train.freeze. With LoRA (peft.lora_rank) only adapters and peft.modules_to_save are trained.
bool trains(const Config& config, const std::string& name);

// Whether a run that begins with weights loads the tensor: checkpoint.load_only and load_except.
bool loads(const Config& config, const std::string& name);

}  // namespace metroplex::config
