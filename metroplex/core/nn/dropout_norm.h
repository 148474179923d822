// h = residual + dropout(x + bias) and norm(h) in one pass over memory, differentiable. Backward is one pass too: the
// gradient of norm(h) is held until the gradient of h has arrived (see dropout_norm.cpp).
// Shapes: x, residual, h and norm(h) are [s (/tp with sequence parallelism), b, hidden size].
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/dropout.h"
#include "nn/norm.h"
#include "nn/saved.h"

namespace metroplex::nn {

struct ResidualAndNorm {
  at::Tensor h;
  Input normed;  // if the policy recomputes norms, the following layers do not save it
};
struct BiasDropoutAddNorm {
  BiasDropoutAdd add;
  Norm* norm = nullptr;
  const SavePolicy& saving;
};

// Gives the same bits as bias_dropout_add (dropout.h) and normalize (norm.h), forward and backward, except that a GPU
// sums the bias gradient in another order. Overwrites x.
ResidualAndNorm bias_dropout_add_norm(const at::Tensor& x_sbh, const at::Tensor& residual,
                                      const BiasDropoutAddNorm& how, const Microbatch& batch);

// The same for an existing h. Backward adds dh to the norm's input gradient in place. Autograd accumulates in
// place for real tensors only. On the meta device it allocates a third tensor, so the memory prediction would not
// match.
ResidualAndNorm sum_and_norm(const at::Tensor& h, Norm& norm, const SavePolicy& saving);
// The same without a norm. The gradient dh keeps its type, so that an fp32 gradient of a router is added without a
// cast.
ResidualAndNorm fork_sum(const at::Tensor& sum);

}  // namespace metroplex::nn
