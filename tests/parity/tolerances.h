// How far a replay in fp32 may be off from the golden run. Fixed, absolute (the gradient norm relative): rounding of
// a few thousand additions, and of other orders. Half precision has another yardstick (yardstick.h).
#pragma once

#include <string>

namespace metroplex::parity {

// Neighbours of a float near 4 lie 4.8e-7 apart: four of them, for the roundings of the last sums. --plant no_clip,
// the smallest of the mistakes, is off by 6e-4.
constexpr double kLossTolerance = 2e-6;
// 6e-8 a rounding, over sums of a few thousand terms their root: 4e-6, five times. --plant no_clip: 9e-3 (what the
// norm itself is, is taken before clipping; the steps differ).
constexpr double kGradNormTolerance = 2e-5;
// The same for elements, sums and norms of gradients, which are below 1. --plant zero_layer_gradient: 0.7.
constexpr double kGradientTolerance = 2e-5;
// Adam moves a parameter by the rate, 5e-3 at most, times a ratio of gradients that is uncertain by 4e-6 / their
// size: 2e-5 where a gradient is a thousandth of the largest. --plant no_clip: 5e-2.
constexpr double kParameterTolerance = 2e-5;

// What is added to every key alike leaves the softmax as it is: the gradient of the key's bias, and without rotation
// that of the key's LayerNorm bias, is zero in exact arithmetic, so Adam turns its rounding noise into whole steps.
// The recipe's tolerance for the parameters that hold it; their gradients are held like all others.
constexpr double kKeyBiasTolerance = 1e-3;

inline double parameter_tolerance(const std::string& name, bool rotary) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool noise = has("linear_qkv.bias") || (has("k_layernorm.bias") && !rotary);
  return noise ? kKeyBiasTolerance : kParameterTolerance;
}

}  // namespace metroplex::parity
