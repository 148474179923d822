// A shared expert, which processes every token: an MLP over the tensor-parallel ranks, optionally scaled per token by
// a gate.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "config/model.h"
#include "nn/layer_context.h"
#include "nn/mlp.h"
#include "nn/param.h"

namespace metroplex::moe {

class SharedExperts {
 public:
  // Parameters are those of nn::Mlp and, with model.moe_shared_expert_gate, <name>.gate_weight [1, h].
  SharedExperts(const std::string& name, const config::Model& model, const nn::LayerContext& context);

  // mlp(x), or mlp(x) sigmoid(x gate^T); x [s (/tp), b, h].
  at::Tensor forward(const nn::Input& in, const nn::Microbatch& batch);
  // The two steps of forward(), with the same bits. begin() computes fc1 and the gate's score; finish() does not read
  // x.
  struct Begun {
    at::Tensor product;  // nn::Mlp::first
    at::Tensor score;    // [s (/tp), b, 1] at least fp32; undefined without a gate
  };
  Begun begin(const nn::Input& in, const nn::Microbatch& batch);
  at::Tensor finish(const Begun& begun, const nn::Microbatch& batch);
  void collect_params(std::vector<nn::Param*>& params);
  void collect_begin_params(std::vector<nn::Param*>& params);
  void collect_finish_params(std::vector<nn::Param*>& params);

 private:
  at::Tensor score(const nn::Input& in);
  at::Tensor gated(const at::Tensor& out, const at::Tensor& score) const;

  device::Target target_;
  nn::SavePolicy saving_;
  nn::Mlp mlp_;
  std::optional<nn::Param> gate_;
};

}  // namespace metroplex::moe
