// Allowed error of an fp32 replay against the golden run. The tolerances are fixed and absolute (the gradient norm is
// relative): rounding of a few thousand additions, and of other orders. Half precision has another yardstick
// (yardstick.h).
#pragma once

#include <string>

namespace metroplex::parity {

// Neighboring floats near 4 are 4.8e-7 apart: four of them, for the roundings of the last sums. --plant no_clip, the
// smallest of the bugs, is off by 6e-4.
constexpr double kLossTolerance = 2e-6;
// 6e-8 per rounding, times the square root of a few thousand terms: 4e-6, five times. --plant no_clip: 9e-3 (the norm
// itself is from before clipping; the steps differ).
constexpr double kGradNormTolerance = 2e-5;
// The same for elements, sums and norms of gradients, which are below 1. --plant zero_layer_gradient: 0.7.
constexpr double kGradientTolerance = 2e-5;
// Adam moves a parameter by the rate, 5e-3 at most, times a ratio of gradients that is uncertain by 4e-6 / their
// size: 2e-5 if a gradient is a thousandth of the largest. --plant no_clip: 5e-2.
constexpr double kParameterTolerance = 2e-5;

// A value added to every key equally does not change the softmax. So the gradient of the key's bias is zero in exact
// arithmetic, and without rotation that of the key's LayerNorm bias too. Adam turns its rounding noise into full
// steps. This is the recipe's tolerance for those parameters; their gradients have the usual tolerance.
constexpr double kKeyBiasTolerance = 1e-3;

inline double parameter_tolerance(const std::string& name, bool rotary) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool noise = has("linear_qkv.bias") || (has("k_layernorm.bias") && !rotary);
  return noise ? kKeyBiasTolerance : kParameterTolerance;
}

}  // namespace metroplex::parity
