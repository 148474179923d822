// The local experts of a layer: for the rows of each expert e, fc2_e(f(fc1_e x + b1_e) p) + b2_e p, with p the
// probability of the row (seen by the tokens of one rank this is its share of the mixture). Split over etp by the
// inner width; the results are summands over etp. The experts whose parameters lie here are at home; behind them
// come slots for clones of others, whose weights are activations: a dispatcher brings them (clones.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "config/model.h"
#include "cuda/kernels/grouped_product.h"
#include "moe/clones.h"
#include "moe/context.h"
#include "moe/grouped_product.h"
#include "nn/activation.h"
#include "nn/autograd_node.h"
#include "nn/layer_context.h"
#include "nn/param.h"
#include "nn/saved.h"

namespace metroplex::moe {

// What local experts do to their rows besides products (cuda/kernels/expert_rows.h), on tensors and without autograd.
// `probs` [R], of the wide type of the rows, may be undefined, for 1. Rows behind the last one stay as they are.
class ExpertRowKernels {
 public:
  explicit ExpertRowKernels(const nn::ActivationSpec& spec) : spec_(spec) {}

  // x [R, width (x 2)], bias [E, width (x 2)] or undefined -> f(x + bias) p [R, width].
  at::Tensor activation(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& probs,
                        const at::Tensor& counts) const;
  // dx; overwrites dprobs where it is defined.
  at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                 const at::Tensor& probs, const at::Tensor& counts, const at::Tensor& dprobs) const;
  // y += bias p; dprobs += dy . bias.
  void add_bias(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& probs, const at::Tensor& counts) const;
  void add_bias_probs(const at::Tensor& dprobs, const at::Tensor& dy, const at::Tensor& bias,
                      const at::Tensor& counts) const;
  // gradient [E, width] += the sum of p x over the rows of each expert.
  void add_sums(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& probs,
                const at::Tensor& counts) const;
  // x p; and back: dx, and dprobs is overwritten.
  at::Tensor scale(const at::Tensor& x, const at::Tensor& probs, const at::Tensor& counts) const;
  at::Tensor scale_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& probs,
                            const at::Tensor& counts, const at::Tensor& dprobs) const;

 private:
  nn::ActivationSpec spec_;
};

struct ExpertRows {
  at::Tensor x;  // [R, h], the rows of expert 0, then those of expert 1, ...; what lies behind the last is never read
  at::Tensor probs;   // [R], at least fp32
  at::Tensor counts;  // [home experts + slots] int64, on the device of x: rows of each; their sum is at most R
};

class Experts {
 public:
  // Parameters are <name>.linear_fc1.weight [E, ffn (x 2 when gated: [gate; up]), h], <name>.linear_fc2.weight
  // [E, h, ffn] and, with model.add_bias_linear, <name>.linear_fc1.bias [E, ffn (x 2)], <name>.linear_fc2.bias [E,
  // h], of the expert grid, cut over ep and etp, with a part for each expert:
  // <name>.local_experts.<e>.linear_fc1.weight.
  Experts(const std::string& name, const config::Model& model, const nn::LayerContext& context,
          const ExpertContext& experts);

  // [R, h], differentiable in x and probs. Rows behind the last are unspecified, in gradients too. Gradients of home
  // experts are added to main_grad; those of clones go where `clones` says, as soon as they are there. All that is
  // under way of the clones has been joined when it returns.
  // `is_recompute`: of a forward that backward repeats, whose rows are not worth pages.
  at::Tensor forward(const ExpertRows& rows, const Clones& clones = {}, bool is_recompute = false);
  HomeWeights home();
  void collect_params(std::vector<nn::Param*>& params);
  // Whether forward and backward wait for the counts on the host.
  bool needs_host() const { return !grouped_; }

 private:
  // Of a forward, for its backward too.
  struct Counts {
    at::Tensor device;
    std::vector<int64_t> host;  // where experts come one after the other
  };
  // Probabilities that multiply the input multiply nothing else: `probs` is undefined.
  struct Factors {
    at::Tensor input, probs;
  };
  struct KeptClones {
    nn::Saved fc1, fc2, bias1, bias2;
  };
  struct Kept {
    nn::Saved x, inner, activated;
    Factors factors;
    Counts counts;
    KeptClones clones;
    decltype(Clones::bring_home) bring_home;
  };

  Counts counts_of(const ExpertRows& in) const;
  // The steps of a forward.
  at::Tensor input(const at::Tensor& x, const Factors& p, const Counts& counts) const;
  at::Tensor activation(const at::Tensor& x, const Factors& p, const Counts& counts,
                        const at::Tensor& clone_bias) const;
  // forward or input_gradient: of all rows, with the weight of each one's expert.
  at::Tensor product(cuda::kernels::GroupedOp op, const at::Tensor& rows, const GroupedWeights& weights,
                     const Counts& counts) const;
  KeptClones keep(const Clones& clones) const;
  // Sets x, inner and activated.
  void keep_rows(Kept& kept, const at::Tensor& x, const at::Tensor& inner, const at::Tensor& activated,
                 bool is_recompute) const;
  // Of x and probs.
  nn::Gradients backward(const at::Tensor& dy, const Kept& kept);
  // Both return the gradients of clones, undefined without slots.
  at::Tensor weight_gradient(nn::Param& weight, const at::Tensor& dy, const at::Tensor& x,
                             const Counts& counts) const;
  at::Tensor bias_gradient(nn::Param& bias, const at::Tensor& dy, const at::Tensor& probs,
                           const Counts& counts) const;
  // Where a gradient of clones goes, which leaves with that of their rows; null without slots.
  at::Tensor* clones_of(const nn::Param& home, at::Tensor& gradient) const;

  cuda::Target target_;
  nn::SavePolicy saving_;
  bool grouped_, scales_input_, first_of_etp_;
  int64_t slots_;
  std::shared_ptr<const StaticBuffers> buffers_;
  std::shared_ptr<PagedStash> stash_;  // null: whole buffers are kept
  int number_ = 0;                     // of the stash
  GroupedProduct products_;
  ExpertRowKernels rows_;
  nn::Param fc1_, fc2_;
  std::optional<nn::Param> bias1_, bias2_;
};

}  // namespace metroplex::moe
