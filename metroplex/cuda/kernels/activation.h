// Activation functions with the bias added in the same pass, plain and gated. Values are row-major [rows, width];
// gated kernels read [gate; up] rows of 2 * width. Computed in T (float or double).
#pragma once

#include <cstdint>

namespace metroplex::cuda::kernels {

enum class Activation { gelu, gelu_tanh, silu, relu, squared_relu };

struct ActivationShape {
  int64_t rows = 0, width = 0;  // of the output
  Activation kind = Activation::gelu;
  bool gated = false;
};

// x += bias (may be null) in place, then out = f(x), or f(gate) * up.
template <class T>
void activation_forward(T* x, const T* bias, T* out, const ActivationShape& shape);
// dx from dy and the x that forward left.
template <class T>
void activation_backward(const T* dy, const T* x, T* dx, const ActivationShape& shape);

}  // namespace metroplex::cuda::kernels
