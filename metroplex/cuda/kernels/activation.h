// Activation functions with the bias added in the same pass, plain and gated. Values are row-major [rows, width];
// gated kernels read [gate; up] rows of 2 * width. T is float, double, Bf16 or F16 (half.h).
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

enum class Activation { gelu, gelu_tanh, quick_gelu, silu, relu, squared_relu };

struct ActivationShape {
  int64_t rows = 0, width = 0;  // of the output
  Activation kind = Activation::gelu;
  bool gated = false;
};

// out = f(x + bias), or f(gate) * up; bias may be null. float and double leave x + bias in x, half types leave x.
template <class T>
void activation_forward(T* x, const Wide<T>* bias, T* out, const ActivationShape& shape);
// dx from dy and the x that forward left; bias: null for float and double.
template <class T>
void activation_backward(const T* dy, const T* x, const Wide<T>* bias, T* dx, const ActivationShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. base::Error("cuda", ...) when nothing was
// launched.
template <class T>
void activation_forward_cuda(T* x, const Wide<T>* bias, T* out, const ActivationShape& shape, CUstream_st* stream);
template <class T>
void activation_backward_cuda(const T* dy, const T* x, const Wide<T>* bias, T* dx, const ActivationShape& shape,
                              CUstream_st* stream);

}  // namespace metroplex::cuda::kernels
