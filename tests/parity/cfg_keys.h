// Megatron's options of a golden run's config.cfg, in the product's words.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "config/config.h"

namespace metroplex::parity {

// Applies every key of `cfg` to `config`. Throws base::Error with the name of a key of `where` that the product
// lacks, or of a value that it cannot replay; null is a key's default.
void apply_cfg(const nlohmann::json& cfg, config::Config& config, const std::string& where = "config.cfg");

}  // namespace metroplex::parity
