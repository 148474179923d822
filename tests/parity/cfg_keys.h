// Megatron's options as a golden run's config.cfg gives them, in the product's words.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "config/config.h"

namespace metroplex::parity {

// Applies every key of `cfg` to `config`. Throws base::Error naming a key of `where` that the product lacks, or a
// value that it cannot replay; null is a key's default.
void apply_cfg(const nlohmann::json& cfg, config::Config& config, const std::string& where = "config.cfg");

}  // namespace metroplex::parity
