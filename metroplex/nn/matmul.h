// The three products of a linear layer, by the library that product_choice.h names for this CPU. All read and write
// strided 2-D views.
#pragma once

#include <ATen/core/Tensor.h>

#include "cuda/launch_point.h"

namespace metroplex::nn {

// x [..., in] times weight [out, in] transposed, plus bias [out] where defined -> [..., out], contiguous.
at::Tensor linear_product(const cuda::Target& target, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias = {});
// dy [..., out] times weight [out, in] -> [..., in], contiguous.
at::Tensor linear_input_gradient(const cuda::Target& target, const at::Tensor& dy, const at::Tensor& weight);
// gradient [out, in] += dy^T x over all leading dimensions, or = where it does not add; summed in the precision of
// `gradient` where the device can.
void put_linear_weight_gradient(const cuda::Target& target, at::Tensor& gradient, const at::Tensor& dy,
                                const at::Tensor& x, bool adds);
// gradient [out] += the sum of dy over all leading dimensions, in the precision of `gradient`.
void add_linear_bias_gradient(const cuda::Target& target, at::Tensor& gradient, const at::Tensor& dy);

}  // namespace metroplex::nn
