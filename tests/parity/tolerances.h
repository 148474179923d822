// How far a replay in fp32 may be off from the golden run. Fixed, absolute (the gradient norm relative): rounding of
// a few thousand additions, and of other orders. Half precision has another yardstick (yardstick.h).
#pragma once

#include <string>

namespace metroplex::parity {

constexpr double kLossTolerance = 2e-6;
constexpr double kGradNormTolerance = 2e-5;
constexpr double kGradientTolerance = 2e-5;
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
