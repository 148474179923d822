// Isolates the differences between minor releases of torch.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::native {
// libtorch_cpu 2.11 exports this function but no header declares it: result = beta * result + alpha * a b through
// oneDNN. 2-D, with row-major or transposed strides; alpha must be 1.
TORCH_API void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}  // namespace at::native

// An MKL function, which libtorch_cpu 2.11 exports on x86: c [m, n] in fp32 = alpha a b + beta c; null in builds
// without MKL.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b, int m,
                                                             int n, int k, float alpha, const void* a, int lda,
                                                             const void* b, int ldb, float beta, float* c, int ldc);
