// The linear layer, split over the tensor-parallel group by output or input features, or replicated on every rank.
// The weight gradient is accumulated directly into main_grad, overlapped with the collective of the input gradient.
// Adapters (lora.h) contribute before each sum over the ranks. Shapes: s sequence, b microbatch; activations are [s,
// b, features], with sequence parallelism [s/tp, b, features] before a column-parallel and after a row-parallel
// layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "device/launch_point.h"
#include "nn/layer_context.h"
#include "nn/lora.h"
#include "nn/operand_rounding.h"
#include "nn/param.h"
#include "nn/saved.h"

namespace metroplex::nn {

struct LinearSpec {
  std::string name;  // parameters are <name>.weight [out, in] and <name>.bias [out]
  int64_t in_features = 0, out_features = 0;
  bool bias = true;
  bool skip_bias_add = false;  // the caller adds bias() and accumulates its gradient
  Init init = Init::normal;
  std::vector<int64_t> sections = {};             // column only: consecutive output features, each split over tp
  std::vector<topology::Region> regions = {};     // named regions of the output features, for weight and bias
  std::vector<config::AdapterBox> adapters = {};  // candidates for peft.lora_target_modules
  bool skip_bias_gradient = false;                // the caller accumulates the gradient of bias()
};

inline LinearSpec linear_spec(const std::string& name, int64_t in, int64_t out, bool bias) {
  LinearSpec spec;
  spec.name = name;
  spec.in_features = in;
  spec.out_features = out;
  spec.bias = bias;
  return spec;
}

// Locations of a layer's values in the unsharded tensors: the dropout mask of its adapters, and its output gradients
// for stochastic rounding. Both are empty in evaluation and without these features.
struct LinearRows {
  AdapterRows adapters;
  DropoutMask gradients;
};

// Whether a layer gathers rows as codes over sp: its input in forward; its input or output gradient in backward.
struct CodeGathers {
  bool forward = false, backward = false;
};

// Shapes of a rank. With sequence parallelism, the sequence outside the layer is split: s is s / tp there.
//   split     input              output             Megatron's name
//   output    [s, b, in]         [s, b, out/tp]     ColumnParallelLinear
//   input     [s, b, in/tp]      [s, b, out]        RowParallelLinear; the bias is added once, after the sum
//   none      [s, b, in]         [s, b, out]        replicated: every rank computes all features of its own rows
class Linear {
 public:
  Linear(const LinearSpec& spec, LinearSplit split, const LayerContext& context);
  // Uses an existing weight [local rows, in], split by output features, without bias: the output layer, possibly tied
  // to the word embedding. With fp32 logits, backward rounds their gradient to the weight's type, as in Megatron.
  Linear(std::shared_ptr<Param> weight, const LayerContext& context);

  at::Tensor forward(const Input& in, const Microbatch& batch) { return forward(in, rows(in, batch)); }
  at::Tensor forward(const Input& in, const LinearRows& rows = {});
  LinearRows rows(const Input& in, const Microbatch& batch) const;
  Param& weight() { return *weight_; }
  Param* bias() { return bias_ ? bias_.get() : nullptr; }
  Param* skipped_bias() { return skip_bias_add_ ? bias() : nullptr; }
  void collect_params(std::vector<Param*>& params);

 private:
  // Operands of a weight gradient.
  struct GradientOperands {
    at::Tensor dy, x;
    DropoutMask positions;
    // Rows undefined: encoded when they are multiplied.
    MatrixCodes dy_codes = {}, x_codes = {};
  };
  // x_magnitude: receives MatrixCodes::magnitude of x, if x is encoded. x: of this rank if it is gathered as codes.
  at::Tensor output(const at::Tensor& x, const at::Tensor& bias, bool trains, at::Tensor& x_magnitude) const;
  at::Tensor multiply(const Codes& left, const Codes& right, at::ScalarType type, const at::Tensor& like) const;
  // dy_codes: if dy is encoded.
  at::Tensor input_gradient(const at::Tensor& dy, const Codes& dy_codes, const DropoutMask& positions) const;
  void put_weight_gradient(at::Tensor& gradient, const GradientOperands& operands, bool adds) const;
  // Codes of all rows for sums over columns, from this rank's rows. Collective over sp.
  MatrixCodes encode_and_gather(const at::Tensor& local, Operand operand, const RoundOptions& options) const;
  MatrixCodes encode_gradient(const at::Tensor& dy, const DropoutMask& positions, bool rows) const;
  bool keeps_input() const { return !weight_->frozen || adapters_.need_input(); }
  void accumulate(const GradientOperands& operands) const;
  // Adds a deferred weight gradient with sequence parallelism, from tensors split over sp. Collective over sp.
  void gather_and_accumulate(const GradientOperands& local) const;
  Param* added_bias() const { return skip_bias_add_ ? nullptr : bias_.get(); }

  LinearSplit split_;
  comm::Group sp_, tp_reduce_;
  device::Target target_;
  SavePolicy saving_;
  bool skip_bias_add_ = false, skip_bias_gradient_ = false;
  Adapters adapters_;
  CodeGathers gathers_;
  OperandRounding rounding_;
  bool wide_output_ = false;  // precision.output_logit_dtype: fp32
  std::shared_ptr<Param> weight_, bias_;
};

// main_grad += dy^T x over all leading dimensions, in the precision of main_grad if the device supports it.
void accumulate_weight_gradient(const device::Target& target, Param& weight, const at::Tensor& dy,
                                const at::Tensor& x);
// main_grad += sum of dy over all leading dimensions.
void accumulate_bias_gradient(const device::Target& target, Param& bias, const at::Tensor& dy);

}  // namespace metroplex::nn
