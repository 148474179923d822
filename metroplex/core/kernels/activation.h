// Plain and gated activation functions with a fused bias add. Values are row-major [rows, width]; gated kernels
// read [gate; up] rows of 2 * width. T is float, double, Bf16 or F16 (half.h). The formulas are at the end of this
// file.
#pragma once

#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

enum class Activation { gelu, gelu_tanh, quick_gelu, silu, relu, squared_relu };

// Clamping of gated units: f(min(gate, clamp)) * (min(max(up, -clamp), clamp) + offset). clamp 0: off.
struct UnitLimits {
  double clamp = 0, offset = 0;

  constexpr bool any() const { return clamp > 0 || offset != 0; }
  template <class T>
  constexpr T gate(T x) const {
    return clamp > 0 && x > static_cast<T>(clamp) ? static_cast<T>(clamp) : x;
  }
  template <class T>
  constexpr T up(T x) const {
    const T most = static_cast<T>(clamp), by = static_cast<T>(offset);
    return (clamp > 0 ? (x > most ? most : x < -most ? -most : x) : x) + by;
  }
  // Derivatives of gate() and up().
  template <class T>
  constexpr T gate_slope(T x) const {
    return clamp > 0 && x > static_cast<T>(clamp) ? T(0) : T(1);
  }
  template <class T>
  constexpr T up_slope(T x) const {
    const T most = static_cast<T>(clamp);
    return clamp > 0 && (x > most || x < -most) ? T(0) : T(1);
  }
};

struct ActivationShape {
  int64_t rows = 0, width = 0;  // shape of the output
  Activation kind = Activation::gelu;
  bool gated = false;
  UnitLimits limits = {};
};

// out = f(x + bias), or f(gate) * up with clamping; bias may be null. The float and double versions overwrite x
// with x + bias; the half versions leave x unchanged.
template <class T>
void activation_forward(T* x, const T* bias, T* out, const ActivationShape& shape);
// Computes dx from dy and the x that activation_forward left in memory; bias is null for float and double. `lines`,
// if not null, gets partial sums of dx over the rows, for sum_lines (column_sums.h): the CPU writes one line [width],
// a GPU column_lines of a matrix [rows, width]. Only for units without a gate.
template <class T>
void activation_backward(const T* dy, const T* x, const T* bias, T* dx, Wide<T>* lines, const ActivationShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
template <class T>
void activation_forward_cuda(T* x, const T* bias, T* out, const ActivationShape& shape, CUstream_st* stream);
template <class T>
void activation_backward_cuda(const T* dy, const T* x, const T* bias, T* dx, Wide<T>* lines,
                              const ActivationShape& shape, CUstream_st* stream);

// The formulas of the activation functions and their derivatives, shared by CPU and GPU kernels. Math provides exp,
// tanh, erf and 1 / x.

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
    return x * Math::reciprocal(T(1) + Math::exp(T(-kSigmoidFactor<kind>) * x));
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
    const T s = Math::reciprocal(T(1) + Math::exp(-factor * x));
    return s * (T(1) + factor * x * (T(1) - s));
  }
  if constexpr (kind == Activation::relu) return x > 0 ? T(1) : T(0);
  if constexpr (kind == Activation::squared_relu) return x > 0 ? T(2) * x : T(0);
}

}  // namespace metroplex::kernels
