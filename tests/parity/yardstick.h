// Half-precision runs are compared through the exact run: the same run in float64, which rounds nowhere. Two programs
// that round alike but independently are sqrt(2) times as far from each other as each is from the exact run. Ours may
// be at most twice as far from the recorded run as that one is from the exact one (root mean square).
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "parity/replay.h"

namespace metroplex::parity {

// Numbers that are compared together, each by its expected error, as root mean squares over `count` of them.
struct Distance {
  std::string what;     // "losses", "gradient of decoder.layers.0.mlp.linear_fc1.weight"
  double ours = 0;      // ours to the recorded
  double theirs = 0;    // the recorded to the exact
  double rounding = 0;  // ours to the exact
  int64_t count = 0;
  double ratio() const { return theirs > 0 ? ours / theirs : ours > 0 ? INFINITY : 0; }
};

// Upper bound of `ratio` over `count` independent numbers: twice. For few numbers it is the quantile of the F
// distribution that a correct program exceeds with probability `level`, sqrt(2 F).
double allowed_ratio(int64_t count, double level);

// The comparisons of a run, and those out of bounds, in words; empty if it fits.
struct ComparisonResult {
  std::vector<std::string> lines, failures;
};
ComparisonResult compare_half(const nlohmann::json& recorded, const Trajectory& ours, const Trajectory& exact);

}  // namespace metroplex::parity
