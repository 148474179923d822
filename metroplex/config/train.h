// The loop: batch sizes, how long, what is printed and when.
#pragma once

#include <cstdint>
#include <string>

namespace metroplex::config {

// Its keys, each with type, default and help: train_keys.inc.
struct Train {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/train_keys.inc"
#undef KEY
};

}  // namespace metroplex::config
