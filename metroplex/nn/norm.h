// LayerNorm and RMSNorm over the last dimension, computed in at least fp32. Parameters are replicated over tp; where
// each rank sees only its part of the rows (sequence parallelism, heads) their gradients are partial.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "nn/dropout.h"
#include "nn/layer_context.h"
#include "nn/param.h"
#include "nn/saved.h"

namespace metroplex::nn {

struct NormSpec {
  std::string name;  // <name>.weight [width] and, for LayerNorm, <name>.bias [width]
  int64_t width = 0;
  bool rms = false;
  double epsilon = 1e-5;
  topology::AxisSet partial = {};  // of both gradients
  topology::Role role = topology::Role::norm;
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

  // The same of a sum that is made in the same pass over memory: sum.out = sum.residual + dropout(sum.x + sum.bias).
  at::Tensor apply(const BiasDropoutAddOperands& sum, const DropoutMask& mask, NormSaved* saved) const;
  // What comes back through the norm and past it (dsum, may be undefined), and the gradients of residual and x.
  struct SumGradients {
    at::Tensor dresidual, dx;
  };
  SumGradients backward(const at::Tensor& dy, const at::Tensor& dsum, const NormSaved& saved,
                        const BiasDropoutAddSaved& sum);
  void collect_params(std::vector<Param*>& params);

 private:
  struct Forward;
  struct Backward;
  Forward start_forward(const at::Tensor& x) const;
  Backward start_backward(const at::Tensor& dy, const NormSaved& saved) const;
  void accumulate(const Backward& call);

  NormSpec spec_;
  cuda::Target target_;
  Param weight_, bias_;  // bias_ is empty with rms
};

// norm(x) as the input of the layers behind it, which do not keep it where the policy recomputes norms.
Input normalize(Norm& norm, const at::Tensor& x, const SavePolicy& saving);

}  // namespace metroplex::nn
