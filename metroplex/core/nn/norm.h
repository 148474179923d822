// LayerNorm and RMSNorm over the last dimension, computed in at least fp32. The result has the type of the
// parameters, also with an fp32 residual stream (precision.fp32_residual_connection). Parameters are replicated over
// tp. If a rank normalizes only its share of the rows or heads (sequence parallelism, q and k norms), their gradients
// are partial sums over NormSpec::partial.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/group.h"
#include "kernels/norm.h"
#include "nn/dropout.h"
#include "nn/heads.h"
#include "nn/layer_context.h"
#include "nn/matmul.h"
#include "nn/param.h"
#include "nn/saved.h"

namespace metroplex::nn {

struct NormSpec {
  std::string name;   // <name>.weight [width] and, for LayerNorm, <name>.bias [width]
  int64_t width = 0;  // of this rank
  bool rms = false;
  double epsilon = 1e-5;
  topology::AxisSet partial = {};  // axes over which both gradients are partial sums
  topology::Role role = topology::Role::norm;
  bool one_plus = false;  // multiplies by 1 + weight; weight is initialized to 0
  // The ranks that hold the columns of a row, in order. With several, RMSNorm sums over them, and the weight is split
  // over tp.
  comm::Group columns = {};
  bool add_bias = true;  // LayerNorm only
  bool has_weight = true;

  bool has_bias() const { return !rms && add_bias; }
};

struct NormSaved {
  at::Tensor x, mean, rstd;
};

class Norm {
 public:
  Norm(const NormSpec& spec, const LayerContext& context);

  at::Tensor forward(const at::Tensor& x);
  // Forward and backward without autograd, for use inside a larger autograd node. `saved` may be null.
  at::Tensor apply(const at::Tensor& x, NormSaved* saved) const;
  // Returns the gradient of x, plus `add` (undefined: 0), the gradient of x from its other readers.
  at::Tensor backward(const at::Tensor& dy, const NormSaved& saved, const at::Tensor& add = {});

  // Returns norm(sum.out). The same pass over memory computes sum.out = sum.residual + dropout(sum.x + sum.bias).
  at::Tensor apply(const BiasDropoutAddOperands& sum, const DropoutMask& mask, NormSaved* saved) const;
  // Backward of the fused pass. dy: gradient of the norm; dsum: gradient of sum.out from its other readers, may be
  // undefined. Without dropout and cast, `dresidual` and `dx` are the same tensor. Adds the gradient of sum.bias.
  struct SumGradients {
    at::Tensor dresidual, dx;
  };
  SumGradients backward(const at::Tensor& dy, const at::Tensor& dsum, const NormSaved& saved,
                        const BiasDropoutAddSaved& sum);
  // Operands of the same norm in split_heads and join_heads (heads.h), which have it if it is an RMSNorm of each
  // head.
  bool is_head_norm(int64_t head_dim) const;
  HeadNorm head_norm() const { return {weight_.data, spec_.epsilon, spec_.one_plus, {}}; }
  // The weight's gradient from JoinedHeads::lines, for accumulate_line_sums().
  ParamLines weight_lines(const at::Tensor& lines) { return {&weight_, lines}; }
  void collect_params(std::vector<Param*>& params);

 private:
  struct Forward;
  struct Backward;
  at::Tensor apply_to_columns(const at::Tensor& x, NormSaved* saved) const;
  at::Tensor backward_to_columns(const at::Tensor& dy, const NormSaved& saved);
  at::Tensor scale() const;
  kernels::NormShape norm_shape(const at::Tensor& x) const;
  Forward start_forward(const at::Tensor& x) const;
  Backward start_backward(const at::Tensor& dy, const NormSaved& saved, Param* sum_bias = nullptr) const;
  void accumulate(const Backward& call);

  NormSpec spec_;
  device::Target target_;
  Param weight_, bias_;  // bias_ is empty for RMSNorm
};

// Returns norm(x) as an Input; the following layers do not save it if the policy recomputes norms.
Input normalize(Norm& norm, const at::Tensor& x, const SavePolicy& saving);

}  // namespace metroplex::nn
