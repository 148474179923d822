// Internal to this module: common.pt of torch_dist, the state of a run other than tensors.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "config/config.h"
#include "mcore/settings.h"

namespace metroplex::mcore {

struct CommonState {
  config::Config config;
  nlohmann::json extra;  // of a checkpoint (docs/checkpoint_format.md)
  Progress progress;
};
std::string pickle_common(const CommonState& state);

}  // namespace metroplex::mcore
