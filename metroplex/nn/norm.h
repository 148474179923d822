// LayerNorm and RMSNorm over the last dimension, computed in at least fp32. The result has the type of the
// parameters, also with an fp32 residual stream (precision.fp32_residual_connection). Parameters are replicated over
// tp; where a rank normalizes only its part of the rows or heads (sequence parallelism, q and k norms), their
// gradients are partial sums over NormSpec::partial.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "cuda/kernels/norm.h"
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
  bool one_plus = false;  // multiplies by 1 + weight, which begins at 0
};

// What backward needs.
struct NormSaved {
  at::Tensor x, mean, rstd;
};

class Norm {
 public:
  Norm(const NormSpec& spec, const LayerContext& context);

  at::Tensor forward(const at::Tensor& x);
  // Forward and backward without autograd, for use inside a larger node. `saved` may be null.
  at::Tensor apply(const at::Tensor& x, NormSaved* saved) const;
  at::Tensor backward(const at::Tensor& dy, const NormSaved& saved);

  // norm(sum.out), with sum.out = sum.residual + dropout(sum.x + sum.bias) written in the same pass over memory.
  at::Tensor apply(const BiasDropoutAddOperands& sum, const DropoutMask& mask, NormSaved* saved) const;
  // Its backward. dy: gradient of the norm; dsum: gradient of sum.out from its other readers, may be undefined.
  // `dresidual` and `dx` may be one tensor, where there is no dropout and no cast between them.
  struct SumGradients {
    at::Tensor dresidual, dx;
  };
  SumGradients backward(const at::Tensor& dy, const at::Tensor& dsum, const NormSaved& saved,
                        const BiasDropoutAddSaved& sum);
  void collect_params(std::vector<Param*>& params);

 private:
  struct Forward;
  struct Backward;
  cuda::kernels::NormShape shape_of(const at::Tensor& x) const;
  Forward start_forward(const at::Tensor& x) const;
  Backward start_backward(const at::Tensor& dy, const NormSaved& saved) const;
  void accumulate(const Backward& call);

  NormSpec spec_;
  cuda::Target target_;
  Param weight_, bias_;  // bias_ is empty with rms
};

// norm(x) as the input of the layers that follow, which do not save it where the policy recomputes norms.
Input normalize(Norm& norm, const at::Tensor& x, const SavePolicy& saving);

}  // namespace metroplex::nn
