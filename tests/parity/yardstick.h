// Half-precision runs are held to the exact run: the same run in float64, which rounds nowhere. Two programs that
// round alike but independently lie sqrt(2) times as far from each other as each lies from the exact run; ours may be
// at most twice as far from the recorded run as that one is from the exact one (root mean square).
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "parity/replay.h"

namespace metroplex::parity {

// Numbers that are compared together, each by the error expected of it, as root mean squares over `count` of them.
struct Distance {
  std::string what;     // "losses", "gradient of decoder.layers.0.mlp.linear_fc1.weight"
  double ours = 0;      // ours to the recorded
  double theirs = 0;    // the recorded to the exact
  double rounding = 0;  // ours to the exact
  int64_t count = 0;
  double ratio() const { return theirs > 0 ? ours / theirs : ours > 0 ? INFINITY : 0; }
};

// How large `ratio` may be over `count` independent numbers: twice, or for few numbers the quantile of the F
// distribution that a right program exceeds with probability `level`, sqrt(2 F).
double allowed_ratio(int64_t count, double level);

// What is compared of a run, and what of it is out of bounds, in words; empty when it fits.
struct Verdict {
  std::vector<std::string> lines, failures;
};
Verdict compare_half(const nlohmann::json& recorded, const Trajectory& ours, const Trajectory& exact);

}  // namespace metroplex::parity
