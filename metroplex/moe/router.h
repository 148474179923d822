// The router of a layer of experts: which experts each token is sent to, how much each of them counts, and what keeps
// their load even (auxiliary losses, expert bias, capacity).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/model.h"
#include "moe/context.h"
#include "moe/noise.h"
#include "moe/routing.h"
#include "nn/layer_context.h"
#include "nn/param.h"
#include "nn/segment.h"

namespace metroplex::moe {

// Of model.moe_router_dtype: fp32 or fp64, fp64 in any case where parameters are.
at::ScalarType router_type(const config::Model& model, at::ScalarType parameters);

// The logits: x W^T + b in the router's own number format, with the input's jitter in training.
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

class Router {
 public:
  // Parameters and state are <name>.weight [E, h], <name>.bias [E] with model.add_bias_linear, <name>.expert_bias
  // [E].
  Router(const std::string& name, int64_t layer, const config::Model& model, const nn::LayerContext& context,
         const ExpertContext& experts);
  ~Router();

  // x [s (/tp), b, h] -> T = s (/tp) * b tokens in the order of its rows. Appends the auxiliary losses to
  // context.terms; counts for the bias and the meter where context says that this forward counts.
  Routing forward(const nn::Input& in, nn::SegmentContext& context);
  void collect_params(std::vector<nn::Param*>& params);
  void collect_buffers(std::vector<nn::Buffer*>& buffers);
  void collect_step_counts(std::vector<at::Tensor>& counts);  // see nn::Segment

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metroplex::moe
