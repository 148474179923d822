// The local experts of a layer. For the rows of expert e they compute fc2_e(f(fc1_e x + b1_e) p) + b2_e p, with p the
// router's probability of the row. The inner width is split over etp; results are partial sums over etp. The local
// experts' parameters are on this rank. After them come replica slots for experts of other ranks, whose weights are
// treated as activations and fetched by a dispatcher (replicas.h). Each expert may have its own adapters
// (config/peft.h), without replicas.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "config/model.h"
#include "config/peft.h"
#include "kernels/grouped_product.h"
#include "moe/replicas.h"
#include "moe/context.h"
#include "moe/grouped_product.h"
#include "nn/activation.h"
#include "nn/autograd_node.h"
#include "nn/layer_context.h"
#include "nn/operand_rounding.h"
#include "nn/param.h"
#include "nn/saved.h"

namespace metroplex::moe {

// Operations of local experts on their rows other than products (kernels/expert_rows.h), on tensors and without
// autograd. `probs` [R], of the wide type of the rows; undefined means 1. Rows after the last counted one are
// unchanged.
class ExpertRowKernels {
 public:
  explicit ExpertRowKernels(const nn::ActivationSpec& spec) : spec_(spec) {}

  // x [R, width (x 2)], bias [E, width (x 2)] or undefined -> f(x + bias) p [R, width].
  at::Tensor activation(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& probs,
                        const at::Tensor& counts) const;
  // Returns dx; overwrites dprobs if it is defined.
  at::Tensor activation_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                 const at::Tensor& probs, const at::Tensor& counts, const at::Tensor& dprobs) const;
  // add_bias: y += bias p. add_bias_probs: dprobs += dy . bias.
  void add_bias(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& probs, const at::Tensor& counts) const;
  void add_bias_probs(const at::Tensor& dprobs, const at::Tensor& dy, const at::Tensor& bias,
                      const at::Tensor& counts) const;
  // gradient [E, width] += the sum of p x over the rows of each expert.
  void add_sums(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& probs,
                const at::Tensor& counts) const;
  // scale: x p. scale_backward: returns dx and overwrites dprobs.
  at::Tensor scale(const at::Tensor& x, const at::Tensor& probs, const at::Tensor& counts) const;
  at::Tensor scale_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& probs,
                            const at::Tensor& counts, const at::Tensor& dprobs) const;

 private:
  nn::ActivationSpec spec_;
};

struct StackSizes {
  int64_t experts = 0, width = 0;  // of the whole layer; width: of one half if gated
  bool gated = false;
};
// Shards of a stack of experts over ep and, unless `cut_dim` is negative, over etp. In dimension 1 of gated units
// gate and up are sharded separately.
std::vector<topology::DimShard> stack_cuts(const StackSizes& sizes, const ExpertContext& at, int cut_dim);

struct ExpertRows {
  at::Tensor x;             // [R, h], rows grouped by expert; rows after the last group are never read
  at::Tensor probs;         // [R], at least fp32
  at::Tensor counts;        // [local experts + slots] int64 on the device: rows of each; their sum is at most R
  at::Tensor counter = {};  // [1] int64: number of the microbatch, for stochastic rounding; undefined in evaluation
};

class Experts {
 public:
  // Parameters are <name>.linear_fc1.weight [E, ffn (x 2 when gated: [gate; up]), h], <name>.linear_fc2.weight [E, h,
  // ffn] and, with model.add_bias_linear, <name>.linear_fc1.bias [E, ffn (x 2)], <name>.linear_fc2.bias [E, h]; h is
  // config::expert_row_width. They use the expert grid, are sharded over ep and etp, and have a region for each
  // expert: <name>.local_experts.<e>.linear_fc1.weight. Adapters of <word> are <name>.<word>.lora_A.weight [E, rank,
  // in] and <name>.<word>.lora_B.weight [E, out, rank].
  Experts(const std::string& name, const config::Model& model, const nn::LayerContext& context,
          const ExpertContext& experts);

  // Returns [R, h], differentiable in x and probs. Rows after the last group are unspecified, in gradients too.
  // Gradients of local experts are added to main_grad; those of replicas are passed to `replicas.bring_home` as soon
  // as they are computed. All replica weights in flight have been joined when it returns. `is_recompute`: backward
  // repeats this forward, whose rows are not stored in the paged stash.
  at::Tensor forward(const ExpertRows& rows, const Replicas& replicas = {}, bool is_recompute = false);
  HomeWeights home();
  void collect_params(std::vector<nn::Param*>& params);
  // Returns whether forward and backward read the counts on the host.
  bool needs_host() const { return !grouped_; }

 private:
  // Counts of a forward, also used by its backward.
  struct Counts {
    at::Tensor device;
    at::Tensor ends{};            // GroupCounts::ends
    std::vector<int64_t> host{};  // only without grouped GEMM
    at::Tensor counter{};         // ExpertRows::counter
    GroupCounts of_groups() const { return {device, ends}; }
  };
  // `input` multiplies the rows before fc1, `probs` the activation and bias; exactly one is defined.
  struct Factors {
    at::Tensor input, probs;
  };
  struct KeptReplicas {
    nn::Saved fc1, fc2, bias1, bias2;
  };
  struct Kept {
    nn::Saved x, inner, activated;
    Factors factors;
    Counts counts;
    KeptReplicas replicas;
    decltype(Replicas::bring_home) bring_home;
  };

  // The adapters of one of gate_proj, up_proj and down_proj, whose output is columns [begin, begin + size) of the
  // layer's.
  struct Adapter {
    nn::Param a, b;
    int64_t begin = 0, size = 0;
    double scale = 1;
    bool trains() const { return !a.frozen || !b.frozen; }
  };

  std::vector<Adapter> make_adapters(const std::string& name, const std::vector<config::AdapterBox>& boxes, bool fc1,
                                     const nn::LayerContext& context, const ExpertContext& at) const;
  static bool trains(const std::vector<Adapter>& adapters);
  // out += scale B A x for the rows of each expert.
  void add_adapters(const std::vector<Adapter>& adapters, const at::Tensor& out, const at::Tensor& x,
                    const Counts& counts) const;
  // dx += the adapters' gradient of x; accumulates those of A and B.
  void adapters_backward(std::vector<Adapter>& adapters, const at::Tensor& dx, const at::Tensor& dy,
                         const at::Tensor& x, const Counts& counts) const;

  Counts counts_of(const ExpertRows& in) const;
  at::Tensor input(const at::Tensor& x, const Factors& factors, const Counts& counts) const;
  at::Tensor activation(const at::Tensor& x, const Factors& factors, const Counts& counts,
                        const at::Tensor& replica_bias) const;
  // Forward or input gradient product of all rows, each with the weight of its expert.
  at::Tensor product(kernels::GroupedOp op, const at::Tensor& rows, const GroupedWeights& weights,
                     const Counts& counts) const;
  struct ExpertWeights {
    const nn::Param& home;
    at::Tensor replicas;  // undefined without slots
  };
  // The same with operands in low precision. `trains`: their magnitudes count. `codes`: of rows, or undefined.
  at::Tensor rounded_product(const nn::OperandRounding& rounding, kernels::GroupedOp op, const at::Tensor& rows,
                             const ExpertWeights& weights, const Counts& counts, bool trains,
                             const GroupedWeights& codes = at::Tensor()) const;
  // Whether operands are codes as bf16 numbers, with a factor for each group (OperandRounding::has_bf16_codes()).
  // Without grouped GEMM, rounded values are multiplied instead.
  bool multiplies_bf16_codes(const nn::OperandRounding& rounding, at::ScalarType of_rows) const;
  GroupedWeights bf16_weights(const nn::OperandRounding& rounding, const ExpertWeights& weights, nn::SumOver sum,
                              bool trains) const;
  GroupedWeights bf16_rows(const nn::OperandRounding& rounding, const at::Tensor& rows, nn::Operand operand,
                           const nn::RowGroups& groups, bool trains) const;
  // The codes of an output gradient that both of its products multiply; undefined if they do not.
  GroupedWeights gradient_codes(const nn::OperandRounding& rounding, const at::Tensor& dy,
                                const Counts& counts) const;
  // The same as a product of codes (precision.fp8_products).
  at::Tensor code_product(const nn::OperandRounding& rounding, kernels::GroupedOp op, const at::Tensor& rows,
                          const ExpertWeights& weights, const Counts& counts, bool trains) const;
  KeptReplicas keep(const Replicas& replicas) const;
  // Sets x, inner and activated.
  void keep_rows(Kept& kept, const at::Tensor& x, const at::Tensor& inner, const at::Tensor& activated,
                 bool is_recompute) const;
  nn::Gradients backward(const at::Tensor& dy, const Kept& kept);
  // Both return the gradients of replicas, undefined without slots.
  at::Tensor weight_gradient(nn::Param& weight, const GroupedWeights& dy, const GroupedWeights& x,
                             const Counts& counts) const;
  at::Tensor rounded_weight_gradient(const nn::OperandRounding& rounding, nn::Param& weight, const at::Tensor& dy,
                                     const at::Tensor& x, const Counts& counts, const GroupedWeights& dy_codes) const;
  at::Tensor bias_gradient(nn::Param& bias, const at::Tensor& dy, const at::Tensor& probs,
                           const Counts& counts) const;
  // Returns where to store the gradient of replicas; null without slots.
  at::Tensor* replicas_of(const nn::Param& home, at::Tensor& gradient) const;

  device::Target target_;
  nn::SavePolicy saving_;
  bool grouped_, scales_input_, first_of_etp_;
  int64_t first_row_;  // distinguishes the rows of different ranks in stochastic rounding
  int64_t slots_;
  double fill_;  // config::expert_fill
  std::shared_ptr<const StaticBuffers> buffers_;
  std::shared_ptr<PagedStash> stash_;  // null: whole buffers are saved
  int number_ = 0;                     // layer number in the stash
  GroupedProduct products_;
  nn::OperandRounding rounding1_, rounding2_;  // of fc1, fc2
  ExpertRowKernels rows_;
  nn::Param fc1_, fc2_;
  std::optional<nn::Param> bias1_, bias2_;
  std::vector<Adapter> adapters1_, adapters2_;
};

}  // namespace metroplex::moe
