// The formulas of the activation functions and their derivatives, for CPU and GPU kernels alike. Math says where exp,
// tanh and erf come from.
#pragma once

#include "cuda/kernels/activation.h"

namespace metroplex::cuda::kernels {

constexpr double kSqrtHalf = 0.70710678118654752440, kInvSqrt2Pi = 0.39894228040143267794;
constexpr double kSqrt2OverPi = 0.79788456080286535588, kCubic = 0.044715;
constexpr double kQuick = 1.702;

template <Activation kind>
constexpr double kSigmoidFactor = kind == Activation::quick_gelu ? kQuick : 1.0;  // x * sigmoid(factor * x)

template <Activation kind, class Math, class T>
constexpr MPX_INLINE T activation_value(T x) {
  if constexpr (kind == Activation::gelu) return T(0.5) * x * (T(1) + Math::erf(x * T(kSqrtHalf)));
  if constexpr (kind == Activation::gelu_tanh)
    return T(0.5) * x * (T(1) + Math::tanh(T(kSqrt2OverPi) * (x + T(kCubic) * x * x * x)));
  if constexpr (kind == Activation::silu || kind == Activation::quick_gelu)
    return x * (T(1) / (T(1) + Math::exp(T(-kSigmoidFactor<kind>) * x)));
  if constexpr (kind == Activation::relu) return x > 0 ? x : T(0);
  if constexpr (kind == Activation::squared_relu) return x > 0 ? x * x : T(0);
}

template <Activation kind, class Math, class T>
constexpr MPX_INLINE T activation_slope(T x) {
  if constexpr (kind == Activation::gelu) {
    return T(0.5) * (T(1) + Math::erf(x * T(kSqrtHalf))) + x * T(kInvSqrt2Pi) * Math::exp(T(-0.5) * x * x);
  }
  if constexpr (kind == Activation::gelu_tanh) {
    const T t = Math::tanh(T(kSqrt2OverPi) * (x + T(kCubic) * x * x * x));
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * T(kSqrt2OverPi) * (T(1) + T(3 * kCubic) * x * x);
  }
  if constexpr (kind == Activation::silu || kind == Activation::quick_gelu) {
    constexpr T factor = T(kSigmoidFactor<kind>);
    const T s = T(1) / (T(1) + Math::exp(-factor * x));
    return s * (T(1) + factor * x * (T(1) - s));
  }
  if constexpr (kind == Activation::relu) return x > 0 ? T(1) : T(0);
  if constexpr (kind == Activation::squared_relu) return x > 0 ? T(2) * x : T(0);
}

}  // namespace metroplex::cuda::kernels
