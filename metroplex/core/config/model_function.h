// Compares models by the function that they compute: derived values are resolved, and keys without effect are
// ignored.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

struct Difference {
  std::string key, here, there;  // "model.num_layers" and both values
};
// Returns the keys of section model that distinguish two models with the same weights. Keys that do not change the
// function (neutral_keys.h) are ignored.
std::vector<Difference> differing_keys(const Model& here, const Model& there);

// "[0,1,1]"
std::string layer_pattern(const std::vector<bool>& layers);

}  // namespace metroplex::config
