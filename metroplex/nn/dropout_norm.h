// h = residual + dropout(x + bias) and norm(h) in one pass over memory, differentiable. Backward is one pass too: the
// gradient of norm(h) waits until the gradient of h itself has arrived (dropout_norm.cpp says how).
// Shapes: x, residual, h and norm(h) are [s (/tp with sequence parallelism), b, hidden size].
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/dropout.h"
#include "nn/norm.h"
#include "nn/saved.h"

namespace metroplex::nn {

struct ResidualAndNorm {
  at::Tensor h;
  Input normed;  // where the policy recomputes norms, the layers behind it do not keep it
};
struct BiasDropoutAddNorm {
  BiasDropoutAdd add;
  Norm* norm = nullptr;
  const SavePolicy& saving;
};

// The bits of bias_dropout_add (dropout.h) and normalize (norm.h), forward and backward. Overwrites x likewise.
ResidualAndNorm bias_dropout_add_norm(const at::Tensor& x_sbh, const at::Tensor& residual,
                                      const BiasDropoutAddNorm& how, const Microbatch& batch);

// The same for an h that exists already. Backward adds dh to the norm's input gradient in place. Autograd's own
// accumulation would be in place for real tensors only and allocate a third tensor on the meta device, so the memory
// prediction would not match.
ResidualAndNorm sum_and_norm(const at::Tensor& h, Norm& norm, const SavePolicy& saving);

}  // namespace metroplex::nn
