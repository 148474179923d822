// Patterns over global parameter names: * matches any text, ? any one character. A pattern must match the full name.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

bool matches(const std::string& pattern, const std::string& name);
bool matches_any(const std::vector<std::string>& patterns, const std::string& name);

// True if a training run updates the parameter: it matches train.trainable (if set) and nothing in train.freeze. With
// LoRA (peft.lora_rank) only adapters and peft.modules_to_save are trained.
bool trains(const Config& config, const std::string& name);

// True if a run that starts from existing weights loads the tensor: checkpoint.load_only and load_except.
bool loads(const Config& config, const std::string& name);

}  // namespace metroplex::config
