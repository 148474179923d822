// The router of a layer of experts: which experts each token is sent to, how much each of them counts, and what keeps
// their load even (auxiliary losses, expert bias, capacity).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/model.h"
#include "moe/context.h"
#include "moe/routing.h"
#include "nn/layer_context.h"
#include "nn/segment.h"

namespace metroplex::moe {

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
