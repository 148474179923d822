// What local experts do to their rows besides products (cuda/kernels/expert_rows.h), on tensors and without autograd.
// `probs` [R], of the wide type of the rows, may be undefined, for 1. Rows behind the last one stay as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/activation.h"

namespace metroplex::moe {

class ExpertRowKernels {
 public:
  explicit ExpertRowKernels(const nn::ActivationSpec& spec) : spec_(spec) {}

  // x [R, width (x 2)], bias [E, width (x 2)] or undefined -> f(x + bias) p [R, width].
  at::Tensor activation(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& probs,
                        const at::Tensor& counts) const;
  // dx; overwrites dprobs where it is defined.
  at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                 const at::Tensor& probs, const at::Tensor& counts, const at::Tensor& dprobs) const;
  // y += bias p; dprobs += dy . bias.
  void add_bias(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& probs, const at::Tensor& counts) const;
  void add_bias_probs(const at::Tensor& dprobs, const at::Tensor& dy, const at::Tensor& bias,
                      const at::Tensor& counts) const;
  // gradient [E, width] += the sum of p x over the rows of each expert.
  void add_sums(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& probs,
                const at::Tensor& counts) const;
  // x p; and back: dx, and dprobs is overwritten.
  at::Tensor scale(const at::Tensor& x, const at::Tensor& probs, const at::Tensor& counts) const;
  at::Tensor scale_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& probs,
                            const at::Tensor& counts, const at::Tensor& dprobs) const;

 private:
  nn::ActivationSpec spec_;
};

}  // namespace metroplex::moe
