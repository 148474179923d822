// The matrix products of a linear layer (forward, input gradient, weight gradient), by the library that
// product_choice.h names for this CPU. All read and write strided 2-D views.
#pragma once

#include <ATen/core/Tensor.h>

#include "cuda/launch_point.h"

namespace metroplex::nn {

// x [..., k] times matrix [k, n] -> [..., n], contiguous, plus bias [n] where there is one. Of a weight [out, in]:
// forward takes weight.t(), and the input gradient is that of dy and weight.
at::Tensor linear_product(const cuda::Target& target, const at::Tensor& x, const at::Tensor& matrix,
                          const at::Tensor& bias = {});
// gradient [out, in] += dy^T x over all leading dimensions, or = with `adds` false; accumulated in the precision of
// `gradient` where the device can.
void put_linear_weight_gradient(const cuda::Target& target, at::Tensor& gradient, const at::Tensor& dy,
                                const at::Tensor& x, bool adds);
// gradient += product of its shape, or =. Of a half and fp32 in one pass of our own: libtorch's for mixed types reads
// and writes single elements on a GPU, at half of what memory gives.
void put_product(const cuda::Target& target, const at::Tensor& gradient, const at::Tensor& product, bool adds);
// gradient [out] += the sum of dy over all leading dimensions, or =, in the precision of `gradient`.
void put_linear_bias_gradient(const cuda::Target& target, at::Tensor& gradient, const at::Tensor& dy, bool adds);

}  // namespace metroplex::nn
