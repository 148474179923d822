// What differs between minor releases of torch, in one place.
#pragma once

#include <ATen/core/Tensor.h>

namespace at::native {
// Exported by libtorch_cpu 2.11, declared in no header: result = beta * result + alpha * a b through oneDNN.
// 2-D, any strides that transpose; alpha must be 1.
TORCH_API void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}  // namespace at::native
