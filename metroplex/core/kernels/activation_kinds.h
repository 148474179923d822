// For .cu files: dispatch from a runtime activation kind to its template instance, and the math functions that
// activation.h requires.
#pragma once

#include <cuda_runtime.h>

#include "kernels/activation.h"

namespace metroplex::kernels {

// Branch-free division and tanh, because a thread processes all elements of a pack at once.
struct DeviceMath {
  static __host__ __device__ float exp(float x) { return ::expf(x); }
  static __host__ __device__ double exp(double x) { return ::exp(x); }
  static __host__ __device__ float tanh(float x) {
    return ::copysignf(1.0F - 2.0F * reciprocal(exp(2.0F * ::fabsf(x)) + 1.0F), x);
  }
  static __host__ __device__ double tanh(double x) { return ::tanh(x); }
  static __host__ __device__ float erf(float x) { return ::erff(x); }
  static __host__ __device__ double erf(double x) { return ::erf(x); }
  // Requires x >= 1. Accurate to 1 ulp; returns 0 beyond 2^126.
  static __host__ __device__ float reciprocal(float x) {
#ifdef __CUDA_ARCH__
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#else
    return 1 / x;
#endif
  }
  static __host__ __device__ double reciprocal(double x) { return 1 / x; }
};

// Calls call.template operator()<kind>().
template <class Call>
void with_kind(Activation kind, const Call& call) {
  switch (kind) {
    case Activation::gelu:
      return call.template operator()<Activation::gelu>();
    case Activation::gelu_tanh:
      return call.template operator()<Activation::gelu_tanh>();
    case Activation::quick_gelu:
      return call.template operator()<Activation::quick_gelu>();
    case Activation::silu:
      return call.template operator()<Activation::silu>();
    case Activation::relu:
      return call.template operator()<Activation::relu>();
    case Activation::squared_relu:
      return call.template operator()<Activation::squared_relu>();
  }
}

}  // namespace metroplex::kernels
