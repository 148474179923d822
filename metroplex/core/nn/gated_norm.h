// The norm of Mamba-2: RMSNorm of y silu(gate), separately for each group of heads, in at least fp32 and without
// autograd. The weight is split over tp by heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "nn/layer_context.h"
#include "nn/param.h"

namespace metroplex::nn {

struct GatedNormSpec {
  std::string name;    // <name>.weight [width]
  int64_t width = 0;   // of all tensor-parallel ranks
  int64_t groups = 1;  // of this rank
  double epsilon = 1e-5;
};

class GatedNorm {
 public:
  GatedNorm(const GatedNormSpec& spec, const LayerContext& context);

  // Maps y and the gate, [s, b, width / tp], to the same shape in the type of the weight.
  at::Tensor apply(const at::Tensor& y, const at::Tensor& gate) const;
  struct Gradients {
    at::Tensor y, gate;  // in at least fp32
  };
  Gradients backward(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& gate);
  void collect_params(std::vector<Param*>& params) { params.push_back(&weight_); }

 private:
  struct Normalized;
  Normalized normalize(const at::Tensor& y, const at::Tensor& gate) const;
  at::Tensor by_group(const at::Tensor& x) const { return x.unflatten(-1, {groups_, x.size(-1) / groups_}); }

  int64_t groups_;
  double epsilon_;
  Param weight_;
};

}  // namespace metroplex::nn
