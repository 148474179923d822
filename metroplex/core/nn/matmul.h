// Matrix products of a linear layer (forward, input gradient, weight gradient), by the library that product_choice.h
// selects for this CPU. All read and write strided 2-D views.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "device/launch_point.h"
#include "nn/param.h"

namespace metroplex::nn {

// Returns x [..., k] times matrix [k, n], plus bias [n] if defined; the result [..., n] is contiguous. For a weight
// [out, in], forward passes weight.t(), and the input gradient is the product of dy and weight.
at::Tensor linear_product(const device::Target& target, const at::Tensor& x, const at::Tensor& matrix,
                          const at::Tensor& bias = {});
// Returns the product of half types in fp32, not rounded to their type; other types as linear_product().
at::Tensor wide_linear_product(const device::Target& target, const at::Tensor& x, const at::Tensor& matrix);
// gradient [out, in] += dy^T x over all leading dimensions; overwrites if `adds` is false. Accumulates in the
// precision of `gradient` if the device supports it.
void put_linear_weight_gradient(const device::Target& target, at::Tensor& gradient, const at::Tensor& dy,
                                const at::Tensor& x, bool adds);
// gradient += product of the same shape; overwrites if `adds` is false. A half product is added to an fp32 gradient
// by our own kernel. libtorch's mixed-type kernel accesses single elements on a GPU and reaches half of the memory
// bandwidth.
void put_product(const device::Target& target, const at::Tensor& gradient, const at::Tensor& product, bool adds);
// gradient [out] += the sum of dy over all leading dimensions, in the precision of `gradient`; overwrites if `adds`
// is false.
void put_linear_bias_gradient(const device::Target& target, at::Tensor& gradient, const at::Tensor& dy, bool adds);
// Lines [n, width] of partial sums in at least fp32, whose sum is the gradient of a parameter.
struct ParamLines {
  Param* param = nullptr;
  at::Tensor lines;
};
// Accumulates the gradients of up to kernels::LineSumsTable::kMost parameters in one launch. If gradients are
// deferred, only the sums are kept until then.
void accumulate_line_sums(const device::Target& target, std::vector<ParamLines> all);

}  // namespace metroplex::nn
