// The logits of a router: x W^T + b in its own number format, with the input's jitter in training.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/model.h"
#include "moe/noise.h"
#include "nn/layer_context.h"
#include "nn/param.h"

namespace metroplex::moe {

// Of model.moe_router_dtype: fp32 or fp64, fp64 in any case where parameters are.
at::ScalarType router_type(const config::Model& model, at::ScalarType parameters);

class Gating {
 public:
  // <name>.weight [E, h] and, with model.add_bias_linear, <name>.bias [E].
  Gating(const std::string& name, int64_t layer, const config::Model& model, const nn::LayerContext& context);

  // x [s (/tp), b, h] -> [T, E], differentiable in x. Weight gradients are of this rank's rows.
  at::Tensor forward(const nn::Input& in, const nn::Microbatch& batch);
  void collect_params(std::vector<nn::Param*>& params);

 private:
  // The rows of x as the product takes them; `rows` places them where they jitter.
  at::Tensor input(const at::Tensor& x, const at::Tensor& jitter) const;
  at::Tensor jitter(const nn::DropoutMask& rows) const;
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, const nn::DropoutMask& rows);

  cuda::Target target_;
  nn::SavePolicy saving_;
  at::ScalarType type_;
  double jitter_eps_;
  RowNoise noise_;
  nn::Param weight_;
  std::optional<nn::Param> bias_;
};

}  // namespace metroplex::moe
