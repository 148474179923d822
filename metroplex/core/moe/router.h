// The router of a layer with experts: selects the experts of each token and their weights, and balances the load by
// auxiliary losses, expert bias and capacity.
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

// Returns the type of model.moe_router_dtype, fp32 or fp64; fp64 if parameters are fp64.
at::ScalarType router_type(const config::Model& model, at::ScalarType parameters);

// Computes the logits x W^T + b in the router's type, with input jitter in training.
class Gating {
 public:
  // <name>.weight [E, h] and, with model.add_bias_linear, <name>.bias [E].
  Gating(const std::string& name, int64_t layer, const config::Model& model, const nn::LayerContext& context);

  // x [s (/tp), b, h] -> [T, E], differentiable in x. Weight gradients are partial sums over this rank's rows.
  at::Tensor forward(const nn::Input& in, const nn::Microbatch& batch);
  void collect_params(std::vector<nn::Param*>& params);

 private:
  // Flattens x to [T, h] in the router's type and applies the jitter, if any.
  at::Tensor input(const at::Tensor& x, const at::Tensor& jitter) const;
  at::Tensor jitter(const nn::DropoutMask& rows) const;
  at::Tensor product(const at::Tensor& x, const at::Tensor& jitter) const;
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, const nn::DropoutMask& rows);

  device::Target target_;
  nn::SavePolicy saving_;
  at::ScalarType type_;
  double jitter_eps_;
  RowNoise noise_;
  nn::Param weight_;
  std::optional<nn::Param> bias_;
};

class Router {
 public:
  // Parameters and state are <name>.weight [E, h], <name>.bias [E] with model.add_bias_linear, and <name>.expert_bias
  // [E] with model.moe_router_enable_expert_bias.
  Router(const std::string& name, int64_t layer, const config::Model& model, const nn::LayerContext& context,
         const ExpertContext& experts);
  ~Router();

  // Routes T = s (/tp) * b tokens, the rows of x [s (/tp), b, h] in order. Appends the auxiliary losses to
  // context.terms. Updates bias counts and meter in training forwards that are not recomputations.
  Routing forward(const nn::Input& in, nn::SegmentContext& context);
  void collect_params(std::vector<nn::Param*>& params);
  void collect_buffers(std::vector<nn::Buffer*>& buffers);
  void collect_step_counts(std::vector<at::Tensor>& counts);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metroplex::moe
