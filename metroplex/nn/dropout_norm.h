// h = residual + dropout(x + bias) and norm(h) in one pass over memory, differentiable; backward is one pass too:
// what comes back through the norm waits until what comes back past it is there.
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

// A sum that is there already and its norm. What comes back through the norm is added onto in place: autograd itself
// would make a third tensor of meta ones, and none of real ones.
ResidualAndNorm sum_and_norm(const at::Tensor& h, Norm& norm, const SavePolicy& saving);

}  // namespace metroplex::nn
