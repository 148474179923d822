// The MLP of a transformer layer: fc2(f(fc1(x))), or fc2(f(gate) * up) with gated units. Over the tensor-parallel
// group fc1 is split by columns and fc2 by rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "config/model.h"
#include "nn/activation.h"
#include "nn/linear.h"

namespace metroplex::nn {

class Mlp {
 public:
  // Parameters are <name>.linear_fc1.* [ffn (x 2 when gated: [gate; up]), h] and <name>.linear_fc2.* [h, ffn].
  Mlp(const std::string& name, const config::Model& model, const LayerContext& context);

  // Maps [s (/tp), b, h] to the same shape without the bias of fc2: the caller adds output_bias(). If the policy
  // recomputes the activation, fc2 recomputes its input. If it recomputes fc1, the product of fc1 is also recomputed,
  // and only `in` is saved.
  at::Tensor forward(const Input& in, const Microbatch& batch);
  // The two steps of forward(), for a caller that runs them in two segments. first() returns the product of fc1
  // without its bias. Requires that fc1 is not recomputed.
  at::Tensor first(const Input& in, const Microbatch& batch);
  at::Tensor second(const at::Tensor& product, const Microbatch& batch);
  Param* output_bias() { return fc2_.skipped_bias(); }
  void collect_params(std::vector<Param*>& params);
  void collect_first_params(std::vector<Param*>& params) { fc1_.collect_params(params); }
  void collect_second_params(std::vector<Param*>& params) { fc2_.collect_params(params); }

 private:
  // `saved`: the saved input of the activation, if fc1 is recomputed.
  at::Tensor after_fc1(const at::Tensor& product, const std::optional<Saved>& saved, const Microbatch& batch);

  ActivationSpec activation_;
  SavePolicy saving_;
  Linear fc1_;
  Linear fc2_;
};

}  // namespace metroplex::nn
