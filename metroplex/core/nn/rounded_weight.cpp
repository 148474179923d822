#include "nn/rounded_weight.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "nn/stored_weight.h"

namespace metroplex::nn {
namespace {

// A stack of matrices has one group per matrix.
RoundOptions weight_options(const Param& weight, bool counts) {
  return {.groups = {count_matrices(weight), {}}, .counts = counts};
}

const RoundedWeight& updated_values(const Param& weight) {
  MPX_ASSERT(!weight.rounded->is_stale, "the rounded values of ", weight.name, " are stale");
  return *weight.rounded;
}

bool is_stack(const Param& weight) { return weight.local_shape.size() > 2; }

const Codes& updated_codes(const Param& weight, SumOver sum) {
  const RoundedWeight& kept = updated_values(weight);
  return sum == SumOver::rows && kept.row_codes.codes.defined() ? kept.row_codes : kept.column_codes;
}

}  // namespace

int64_t count_matrices(const Param& weight) { return weight.local_shape.size() > 2 ? weight.local_shape[0] : 1; }

WeightShard make_shard(const Param& weight, const at::Tensor& values, const at::Tensor& codes) {
  const auto& sizes = weight.local_shape;
  return {values, codes, 0, count_matrices(weight), sizes[sizes.size() - 2], sizes.back()};
}

int64_t RoundedWeight::bytes() const {
  // ParamBuffer owns gathered codes.
  int64_t sum = (shard ? 0 : column_codes.bytes()) + row_codes.bytes();
  for (const at::Tensor& part : {columns, rows.is_same(columns) ? at::Tensor() : rows})
    sum += part.defined() ? static_cast<int64_t>(part.nbytes()) : 0;
  return sum;
}

void RoundedWeight::begin_run(const Param& weight, bool measures) {
  is_stale = is_stale || !weight.frozen || rounding.delays_scales() || measures;
}

void RoundedWeight::update(const Param& weight) {
  const at::NoGradGuard no_grad;
  is_stale = false;
  if (shard) {
    rounding.count(*shard, magnitudes, column_codes.decode);
    if (columns.defined()) column_codes.values(columns.view({-1, columns.size(-1)}));
    if (row_codes.codes.defined()) transpose(rounding.target(), column_codes, row_codes);
    return;
  }
  if (column_codes.codes.defined() && !is_stack(weight)) {
    rounding.encode_matrix(weight.data, Operand::weight, {true, true}, {.counts = true},
                           {column_codes, row_codes, {}});
    return;
  }
  if (column_codes.codes.defined()) {
    const auto encode = [&](SumOver sum, bool counts, const Codes& out) {
      rounding.encode(weight.data, Operand::weight, sum, weight_options(weight, counts), out);
    };
    encode(SumOver::columns, true, column_codes);
    if (row_codes.codes.defined()) encode(SumOver::rows, false, row_codes);
    return;
  }
  if (!columns.defined()) return;
  RoundOptions options = weight_options(weight, true);
  options.out = columns;
  rounding.round(weight.data, Operand::weight, SumOver::columns, options);
  if (rows.is_same(columns)) return;
  options.out = rows, options.counts = false;
  rounding.round(weight.data, Operand::weight, SumOver::rows, options);
}

void keep_rounded(Param& weight, const OperandRounding& rounding, const LayerContext& context, KeptForm form) {
  if (!rounding.rounds() || weight.stored) return;
  const bool can_gather_codes = rounding.encodes_shards(weight.local_shape);
  if (!context.keeps_rounded_weights && !can_gather_codes) return;
  weight.rounded = std::make_shared<RoundedWeight>();
  RoundedWeight& kept = *weight.rounded;
  kept.rounding = rounding;
  kept.can_gather_codes = can_gather_codes;
  if (!context.keeps_rounded_weights) return;
  const at::Device memory = context.target.memory();
  if (form == KeptForm::codes && !is_stack(weight)) {
    const MatrixCodes codes = rounding.make_matrix_codes(weight.local_shape, memory, Operand::weight, {true, true});
    kept.column_codes = codes.columns, kept.row_codes = codes.rows;
    return;
  }
  if (form != KeptForm::values) {
    RoundOptions options = weight_options(weight, false);
    options.bf16_codes = form == KeptForm::bf16_codes;
    const auto make = [&](SumOver sum) {
      return rounding.make_codes(weight.local_shape, memory, Operand::weight, sum, options);
    };
    kept.column_codes = make(SumOver::columns);
    if (!rounding.shares_weight()) kept.row_codes = make(SumOver::rows);
    return;
  }
  const auto rounded = at::TensorOptions().device(memory).dtype(rounding.result_type(weight.scalar_type()));
  kept.columns = at::empty(weight.local_shape, rounded);
  kept.rows = rounding.shares_weight() ? kept.columns : at::empty(weight.local_shape, rounded);
}

at::Tensor round_weight(const OperandRounding& rounding, const Param& weight, SumOver sum, bool counts) {
  if (weight.rounded && weight.rounded->columns.defined()) {
    const RoundedWeight& kept = updated_values(weight);
    return sum == SumOver::columns ? kept.columns : kept.rows;
  }
  if (weight.rounded && weight.rounded->column_codes.codes.defined()) {
    const Codes& kept = updated_codes(weight, sum);
    MPX_ASSERT(is_stack(weight) || &kept != &weight.rounded->row_codes, "row codes of ", weight.name,
               " are transposed");
    const auto rounded = kept.codes.options().dtype(rounding.result_type(weight.scalar_type()));
    return kept.values(at::empty({kept.codes.size(0), kept.columns()}, rounded)).view(weight.local_shape);
  }
  return rounding.round(weight_values(weight), Operand::weight, sum, weight_options(weight, counts));
}

Codes encode_weight(const OperandRounding& rounding, const Param& weight, SumOver sum, bool counts, bool bf16_codes) {
  if (!weight.rounded || !weight.rounded->column_codes.codes.defined()) {
    RoundOptions options = weight_options(weight, counts);
    options.bf16_codes = bf16_codes;
    if (is_stack(weight)) return rounding.encode(weight_values(weight), Operand::weight, sum, options);
    const bool forward = sum == SumOver::columns;
    const MatrixCodes codes =
        rounding.encode_matrix(weight_values(weight), Operand::weight, {forward, !forward}, options);
    return forward ? codes.columns : codes.rows;
  }
  Codes kept = updated_codes(weight, sum);
  // Gathered codes that are not kept for both products.
  if (sum == SumOver::rows && !is_stack(weight) && !weight.rounded->row_codes.codes.defined())
    kept = transpose(rounding.target(), kept);
  if (bf16_codes) kept.codes = kept.codes.to(at::kBFloat16);
  return kept;
}

void WeightRounder::before(const RegionEvent& event) {
  if (!event.enters_block) return;
  for (const Param* weight : blocks_[static_cast<size_t>(event.block)])
    if (weight->rounded && weight->rounded->is_stale) weight->rounded->update(*weight);
}

}  // namespace metroplex::nn
