// LayerNorm and RMSNorm over the last dimension, computed in at least fp32. Parameters are replicated over tp; where
// each rank sees only its part of the rows (sequence parallelism, heads) their gradients are partial.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "nn/param_init.h"

namespace metroplex::nn {

struct NormSpec {
  std::string name;  // <name>.weight [width] and, for LayerNorm, <name>.bias [width]
  int64_t width = 0;
  bool rms = false;
  double epsilon = 1e-5;
  bool partial_grad_over_tp = false;
};

// What backward needs.
struct NormSaved {
  at::Tensor x, mean, rstd;
};

class Norm {
 public:
  Norm(const NormSpec& spec, const LayerContext& context);

  at::Tensor forward(const at::Tensor& x);
  // The two halves without autograd, for use inside a larger closure. `saved` may be null.
  at::Tensor apply(const at::Tensor& x, NormSaved* saved) const;
  at::Tensor backward(const at::Tensor& dy, const NormSaved& saved);
  void collect_params(std::vector<Param*>& params);

 private:
  NormSpec spec_;
  Param weight_, bias_;  // bias_ is empty with rms
};

}  // namespace metroplex::nn
