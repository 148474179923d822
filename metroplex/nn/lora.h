// The low-rank adapters of one linear layer (LoRA, arXiv 2106.09685): its output gets scale B A dropout(x). Of a
// layer split by output features every rank has all of A and its rows of B; by input features its columns of A and
// all of B, and the sum over the ranks is that of the layer. What is whole on each rank has a gradient that is a
// summand. A begins as PEFT's (Kaiming-uniform with a = sqrt 5: uniform within 1 / sqrt(in)), B with zeros.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "config/peft.h"
#include "nn/dropout.h"
#include "nn/layer_context.h"
#include "nn/param.h"
#include "nn/saved.h"

namespace metroplex::nn {

enum class LinearSplit { output, input, none };

struct AdapterSpec {
  std::string linear;  // <prefix>.linear_..., of the adapted layer
  int64_t in_features = 0;
  std::vector<config::AdapterBox>
      boxes;  // of the whole layer; those that peft.lora_target_modules names get adapters
  LinearSplit split = LinearSplit::none;
};

// Which elements of the layer's input are dropped; of a layer without adapters, or without their dropout, nothing.
using AdapterRows = DropoutMask;

class Adapters {
 public:
  Adapters() = default;
  Adapters(const AdapterSpec& spec, const LayerContext& context);

  bool empty() const { return adapters_.empty(); }
  // Whether backward needs the input of the layer.
  bool need_input() const;
  // For an input of the layer of `sizes` [s, b, in of this rank], whose rows begin at `first_row` of the
  // microbatch's.
  AdapterRows rows(at::IntArrayRef sizes, int64_t first_row, const Microbatch& batch) const;

  // out [s, b, out of this rank] += scale B A dropout(x); x [s, b, in of this rank] has the same rows. Returns
  // scale A dropout(x) of each adapter, [s, b, rank].
  std::vector<at::Tensor> add_outputs(const at::Tensor& out, const at::Tensor& x, const AdapterRows& rows) const;
  std::vector<Saved> keep(const std::vector<at::Tensor>& hidden) const;
  // dx [s, b, in of this rank] += the gradient of x. Returns that of A dropout(x) of each adapter.
  std::vector<at::Tensor> add_input_gradients(const at::Tensor& dx, const at::Tensor& dy,
                                              const AdapterRows& rows) const;
  // The gradients of A and B. `hidden` and `dhidden` are what the functions above returned.
  struct Backward {
    at::Tensor dy, x;
    const std::vector<Saved>& hidden;
    const std::vector<at::Tensor>& dhidden;
  };
  void accumulate(const Backward& of, const AdapterRows& rows) const;
  void collect_params(std::vector<Param*>& params);

 private:
  struct Adapter {
    std::shared_ptr<Param> a, b;
    int64_t groups = 1, width = 0, begin = 0, size = 0;  // of this rank's output, as config::AdapterBox
    uint64_t key = 0;                                    // of its dropout
  };
  Adapter make(const AdapterSpec& spec, const config::AdapterBox& box, const LayerContext& context) const;
  at::Tensor box_of(const at::Tensor& out, const Adapter& adapter) const;
  at::Tensor dropped(const at::Tensor& x, const Adapter& adapter, const AdapterRows& rows) const;

  std::vector<Adapter> adapters_;
  cuda::Target target_;
  SavePolicy saving_;
  double scale_ = 1, dropout_ = 0;
  int parts_ = 1, part_ = 0;  // of the input's columns
};

}  // namespace metroplex::nn
