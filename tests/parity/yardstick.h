// Half-precision runs are held to the exact run: ours may be at most kFactor times as far from the recorded run as
// the recorded one is from the exact one, root mean square, for losses, for gradient norms and for every tensor.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "parity/replay.h"

namespace metroplex::parity {

// One group of numbers that are compared together.
struct Distance {
  std::string what;   // "losses", "gradient of decoder.layers.0.mlp.linear_fc1.weight"
  double ours = 0;    // root mean square of ours - recorded
  double theirs = 0;  // root mean square of recorded - exact
  double exact = 0;   // ours - exact
  int64_t count = 0;
};

std::vector<Distance> distances(const nlohmann::json& recorded, const Trajectory& ours, const Trajectory& exact);

}  // namespace metroplex::parity
