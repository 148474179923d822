// A weight's rounded values, written once per run of the pipeline and kept for its other uses: the other
// microbatches, backward, and recomputation (precision.keep_rounded_weights; TransformerEngine's
// is_first_microbatch). Values of a frozen weight stay valid until it is loaded, unless its scale depends on the
// step.
//
// With precision.fp8_param_gather, ParamBuffer gathers the weight's codes from the ranks that shard it. Then `data`
// is undefined, and the values are decoded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "nn/layer_context.h"
#include "nn/operand_rounding.h"
#include "nn/param.h"
#include "nn/stage_observer.h"

namespace metroplex::nn {

// Experts with fp8_format = hybrid and fp8_products = library convert their codes to bf16 for each input gradient,
// and with fp8_param_gather for each product.
struct RoundedWeight {
  OperandRounding rounding;
  // Operands of forward and of input gradients; the same tensor if their blocks are the same.
  at::Tensor columns, rows;
  // Instead of both, for products of codes. Column codes may be gathered. Row codes of a matrix are transposed; a
  // stack of matrices has none if both would be the same.
  Codes column_codes, row_codes;
  bool is_stale = true;
  bool can_gather_codes = false;
  // Codes that are gathered: this rank's shard, and the largest magnitude for each factor.
  std::optional<WeightShard> shard;
  at::Tensor magnitudes;

  int64_t bytes() const;
  // Marks the values as stale if they may have changed since the last run. `measures`: the run measures roundings.
  void begin_run(const Param& weight, bool measures);
  // Rounds or decodes the weight. Collective as OperandRounding::round().
  void update(const Param& weight);
};

// Adds a RoundedWeight to a weight that is rounded and not stored as codes, if the context keeps them or codes may be
// gathered.
enum class KeptForm { values, codes, bf16_codes };
void keep_rounded(Param& weight, const OperandRounding& rounding, const LayerContext& context, KeptForm form);

// Number of matrices that have a factor of their own: experts of a stack.
int64_t count_matrices(const Param& weight);
// The shard of a weight [out, in] or [experts, out, in] that begins at its first element.
WeightShard make_shard(const Param& weight, const at::Tensor& values, const at::Tensor& codes);

// Return the weight as an operand: its kept values, or newly rounded ones. `counts` as in RoundOptions. Codes of a
// matrix for SumOver::rows are transposed.
at::Tensor round_weight(const OperandRounding& rounding, const Param& weight, SumOver sum, bool counts = false);
Codes encode_weight(const OperandRounding& rounding, const Param& weight, SumOver sum, bool counts = false,
                    bool bf16_codes = false);

// Updates the stale rounded weights of a block before its computation, outside of captured regions.
class WeightRounder final : public StageObserver {
 public:
  explicit WeightRounder(std::vector<std::vector<Param*>> blocks) : blocks_(std::move(blocks)) {}
  void before(const RegionEvent& event) override;
  void after(const RegionEvent&) override {}

 private:
  std::vector<std::vector<Param*>> blocks_;
};

}  // namespace metroplex::nn
