// The local experts of a layer: for the rows of each expert e, fc2_e(f(fc1_e x + b1_e) p) + b2_e p, with p the
// probability of the row (seen by the tokens of one rank this is its share of the mixture). Split over etp by the
// inner width; the results are summands over etp.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "config/model.h"
#include "moe/context.h"
#include "nn/layer_context.h"
#include "nn/param.h"
#include "nn/saved.h"

namespace metroplex::moe {

struct ExpertRows {
  at::Tensor x;  // [R, h], the rows of expert 0, then those of expert 1, ...; what lies behind the last is never read
  at::Tensor probs;   // [R], at least fp32
  at::Tensor counts;  // [local experts] int64, on the device of x: rows of each; their sum is at most R
};

class Experts {
 public:
  // Parameters are <name>.linear_fc1.weight [E, ffn (x 2 when gated: [gate; up]), h], <name>.linear_fc2.weight
  // [E, h, ffn] and, with model.add_bias_linear, <name>.linear_fc1.bias [E, ffn (x 2)], <name>.linear_fc2.bias [E,
  // h], of the expert grid, cut over ep and etp, with a part for each expert:
  // <name>.local_experts.<e>.linear_fc1.weight.
  Experts(const std::string& name, const config::Model& model, const nn::LayerContext& context,
          const ExpertContext& experts);
  ~Experts();

  // [R, h], differentiable in x and probs. Rows behind the last are unspecified, in gradients too.
  at::Tensor forward(const ExpertRows& rows);
  void collect_params(std::vector<nn::Param*>& params);
  // Whether forward and backward wait for the counts on the host.
  bool needs_host() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metroplex::moe
