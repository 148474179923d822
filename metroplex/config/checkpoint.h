// Saving and loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::config {

// Its keys, each with type, default and help: checkpoint_keys.inc.
struct Checkpoint {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/checkpoint_keys.inc"
#undef KEY
};

}  // namespace metroplex::config
