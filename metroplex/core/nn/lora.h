// Low-rank adapters of one linear layer (LoRA, arXiv 2106.09685), which add scale B A dropout(x) to its output. If
// the layer is split by output features, every rank has all of A and its rows of B. If it is split by input
// features, a rank has its columns of A and all of B. The layer's reduction then also sums the adapters. Gradients
// of replicated matrices are partial sums. A is initialized as in PEFT (Kaiming-uniform with a = sqrt 5: uniform
// within 1 / sqrt(in)), B with zeros. With DoRA (arXiv 2402.09353), row o of the sum is multiplied by m_o / |row o of
// W + scale B A|. As in PEFT, the length is a constant in backward, and the layer's bias is not scaled.
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

// The features over which a linear layer is split over tp; none: every rank has the whole layer (linear.h).
enum class LinearSplit { output, input, none };

struct AdapterSpec {
  std::string linear;  // <prefix>.linear_..., the name of the adapted layer
  int64_t in_features = 0;
  // Regions of the unsharded output; those in peft.lora_target_modules get adapters.
  std::vector<config::AdapterBox> boxes;
  LinearSplit split = LinearSplit::none;
};

// Dropout mask of the layer's input; empty without adapters or without adapter dropout.
using AdapterRows = DropoutMask;

// Values of one adapter in forward that backward uses.
struct AdapterValues {
  at::Tensor hidden;  // scale A dropout(x), [s, b, rank]
  // With DoRA: the output before it is scaled, [rows, groups, size of a group], and the lengths [groups, size].
  at::Tensor unscaled, lengths;
};
struct SavedAdapter {
  Saved hidden, unscaled;
  at::Tensor lengths;
};

class Adapters {
 public:
  Adapters() = default;
  Adapters(const AdapterSpec& spec, const LayerContext& context);

  bool empty() const { return adapters_.empty(); }
  // Whether the output is scaled (DoRA), so that the layer's bias must be added afterwards.
  bool scale_output() const { return dora_ && !empty(); }
  bool need_input() const;
  // Returns the mask for an input of `sizes` [s, b, local in] whose rows begin at row `first_row` of the microbatch.
  AdapterRows rows(at::IntArrayRef sizes, int64_t first_row, const Microbatch& batch) const;

  // out [s, b, local out] += scale B A dropout(x); x [s, b, local in] has the same rows. With DoRA, the sum is
  // scaled; `weight` is the layer's [local out, local in]. Collective over tp with DoRA in a layer split by input
  // features.
  std::vector<AdapterValues> add_outputs(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                                         const AdapterRows& rows) const;
  std::vector<SavedAdapter> keep(const std::vector<AdapterValues>& values) const;
  // Returns the gradient of the unscaled output, and accumulates that of the magnitudes. Without DoRA, returns dy.
  at::Tensor unscale_gradients(const at::Tensor& dy, const std::vector<SavedAdapter>& saved) const;
  // dx [s, b, local in] += the adapters' gradient of x. Returns the gradient of A dropout(x) of each adapter.
  std::vector<at::Tensor> add_input_gradients(const at::Tensor& dx, const at::Tensor& dy,
                                              const AdapterRows& rows) const;
  // Accumulates the gradients of A and B. `saved` is the result of keep(add_outputs()), `dhidden` that of
  // add_input_gradients().
  struct Backward {
    at::Tensor dy, x;
    const std::vector<SavedAdapter>& saved;
    const std::vector<at::Tensor>& dhidden;
  };
  void accumulate(const Backward& call, const AdapterRows& rows) const;
  void collect_params(std::vector<Param*>& params);

 private:
  struct Adapter {
    std::shared_ptr<Param> a, b, magnitude;              // magnitude: null without DoRA
    int64_t groups = 1, width = 0, begin = 0, size = 0;  // region of this rank's output, as in config::AdapterBox
    uint64_t key = 0;                                    // key of its dropout
    double scale = 1;
  };
  Adapter make_adapter(const AdapterSpec& spec, const config::AdapterBox& box, const LayerContext& context) const;
  at::Tensor output_region(const at::Tensor& out, const Adapter& adapter) const;
  // The lengths of the rows of W + scale B A, [groups, size], in at least fp32.
  at::Tensor row_lengths(const at::Tensor& weight, const Adapter& adapter) const;
  at::Tensor scale_factors(const Adapter& adapter, const at::Tensor& lengths) const;
  at::Tensor apply_dropout(const at::Tensor& x, const Adapter& adapter, const AdapterRows& rows) const;

  std::vector<Adapter> adapters_;
  device::Target target_;
  SavePolicy saving_;
  comm::Group input_shards_;  // the ranks that hold the columns of a row; one rank unless split by input features
  bool dora_ = false;
  double dropout_ = 0;
  int num_shards_ = 1, shard_ = 0;  // column shard of the input
};

}  // namespace metroplex::nn
