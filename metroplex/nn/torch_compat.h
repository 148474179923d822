// What differs between minor releases of torch, in one place.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::native {
// Exported by libtorch_cpu 2.11, declared in no header: result = beta * result + alpha * a b through oneDNN.
// 2-D, any strides that transpose; alpha must be 1.
TORCH_API void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}  // namespace at::native

// MKL's, which libtorch_cpu 2.11 exports on x86: c [m, n] in float = alpha a b + beta c; null where it has no MKL.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b, int m,
                                                             int n, int k, float alpha, const void* a, int lda,
                                                             const void* b, int ldb, float beta, float* c, int ldc);
