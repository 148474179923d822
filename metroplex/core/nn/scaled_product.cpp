#include "nn/scaled_product.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "base/round_up.h"

namespace metroplex::nn {
namespace {

using at::blas::ScalingType;
using at::blas::SwizzleType;
using config::Recipe;

// Compute capabilities from `from` to below `below`, as libtorch 2.11 checks them.
struct ProductRow {
  Recipe recipe;
  int from, below;
  const char* gpus;
  int grouped_from = 0, grouped_below = 0;  // products of groups, whose only kernel is one of sm_90
};
constexpr ProductRow kRows[] = {{Recipe::delayed, 89, 1000, "8.9 or higher", 90, 100},
                                {Recipe::tensorwise, 89, 1000, "8.9 or higher", 90, 100},
                                {Recipe::blockwise, 90, 100, "9.0"},
                                {Recipe::mxfp8, 100, 110, "10.0 or 10.3"}};

void check_sizes(const std::string& layer, std::initializer_list<int64_t> sizes) {
  constexpr int64_t kMultiple = 16;  // of cuBLASLt, and of the grouped kernel's accesses
  for (const int64_t size : sizes) {
    MPX_CHECK(size % kMultiple == 0, "config", "precision.fp8_products = library: ", layer,
              " multiplies matrices with ", size, " rows, but the library needs multiples of ", kMultiple,
              "; change the widths or the number of tokens, or set it to widened");
  }
}

// [R, C] -> [R and C rounded up], filled up with zeros.
at::Tensor pad(const at::Tensor& x, int64_t rows, int64_t columns) {
  return at::constant_pad_nd(
      x, {0, base::round_up(x.size(1), columns) - x.size(1), 0, base::round_up(x.size(0), rows) - x.size(0)});
}

// Powers of two -> E8M0: the exponent bits of fp32.
at::Tensor exponent_codes(const at::Tensor& powers) {
  constexpr int64_t kFractionBits = 23;
  return powers.contiguous().view(at::kInt).bitwise_right_shift(kFractionBits).to(at::kByte);
}

// at::repeat_interleave needs no host value with a number as the count.
at::Tensor repeat(const at::Tensor& x, int64_t dim, int64_t count, int64_t size) {
  return count == 1 ? x : at::repeat_interleave(x, count, dim).narrow(dim, 0, size);
}

void multiply_by_library(const at::Tensor& out, const Codes& left, const Codes& right) {
  const at::ScalarType type = out.scalar_type();
  at::Tensor result = out;
  if (!left.has_blocks()) {
    // Sums of partial sums in fp32 (no fast accumulation), as in the products of the other recipes.
    at::_scaled_mm_out(result, left.codes, right.codes.t(), left.decode, right.decode, {}, {}, type, false);
    return;
  }
  const LibraryFactors of_left = library_factors(left), of_right = library_factors(right);
  at::_scaled_mm_v2_out(result, left.codes, right.codes.t(), {of_left.factors}, {of_left.scaling}, {of_left.swizzle},
                        {of_right.factors}, {of_right.scaling}, {of_right.swizzle}, {}, type, {}, false);
}

}  // namespace

Codes Codes::transposed() const {
  return {codes.t().contiguous(), has_blocks() ? decode.t().contiguous() : decode, block_columns, block_rows};
}

at::Tensor Codes::row_factors() const {
  const int64_t rows = codes.size(0), groups = decode.size(0);
  if (codes.is_meta()) return at::empty({rows}, decode.options());  // searchsorted has no version for meta tensors
  if (!counts.defined()) return at::repeat_interleave(decode, rows / groups, 0);
  const at::Tensor group = at::searchsorted(counts.cumsum(0), at::arange(rows, counts.options()), false, true);
  return decode.index_select(0, group.clamp_max(groups - 1));
}

at::Tensor Codes::values(at::Tensor out) const {
  if (!out.defined()) out = at::empty(codes.sizes(), decode.options());
  out.copy_(codes);
  if (!has_blocks()) return out.mul_(row_factors().unsqueeze(1));
  return out.mul_(repeat(repeat(decode, 0, block_rows, codes.size(0)), 1, block_columns, codes.size(1)));
}

LibraryFactors library_factors(const Codes& operand) {
  constexpr int64_t kTileRows = 128, kTileBlocks = 4, kTileParts = 4;
  const auto number = [](auto enumerator) { return static_cast<int64_t>(enumerator); };
  const int64_t plain = number(SwizzleType::NO_SWIZZLE);
  if (operand.block_rows > 1)
    return {pad(operand.decode, 1, kTileBlocks).t(), number(ScalingType::BlockWise128x128), plain};
  if (operand.block_columns == config::operand_block(Recipe::blockwise))
    return {operand.decode.t().contiguous().t(), number(ScalingType::BlockWise1x128), plain};
  const at::Tensor codes = exponent_codes(pad(operand.decode, kTileRows, kTileBlocks));
  const int64_t tiles = codes.size(0) / kTileRows, across = codes.size(1) / kTileBlocks;
  const at::Tensor swizzled =
      codes.view({tiles, kTileParts, kTileRows / kTileParts, across, kTileBlocks}).permute({0, 3, 2, 1, 4});
  return {swizzled.contiguous().view({-1}).view(at::kFloat8_e8m0fnu), number(ScalingType::BlockWise1x32),
          number(SwizzleType::SWIZZLE_32_4_4)};
}

void check_code_product(Recipe recipe, int capability) {
  for (const ProductRow& row : kRows) {
    if (row.recipe != recipe || capability == 0) continue;
    MPX_CHECK(row.from <= capability && capability < row.below, "config",
              "precision.fp8_products = library: ", config::to_setting(recipe), " needs a GPU of compute capability ",
              row.gpus, ", but this one has ", capability / 10, ".", capability % 10, "; set it to widened");
  }
}

at::Tensor scaled_product(const device::Target& target, const Codes& left, const Codes& right, at::ScalarType type,
                          const std::string& layer) {
  const int64_t m = left.codes.size(0), k = left.codes.size(1), n = right.codes.size(0);
  check_sizes(layer, {n, k, left.has_blocks() ? m : n});
  at::Tensor out = at::empty({m, n}, left.codes.options().dtype(type));
  if (!target.meta && m > 0) {
    if (left.has_blocks() && !target.gpu()) out.copy_(at::mm(left.values(), right.values().t()));
    else multiply_by_library(out, left, right);
  }
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  device::issued(target, {"scaled_mm", {&left.codes, &right.codes}, {&out}, {}, flops});
  return out;
}

GroupedCodes grouped_codes(const Codes& rows, const Codes& weights, bool forward) {
  const int64_t groups = weights.decode.size(0), in = weights.codes.size(1), out = weights.codes.size(0) / groups;
  const at::Tensor stack = weights.codes.view({groups, out, in});
  const at::Tensor matrices = forward ? stack.transpose(1, 2) : stack.transpose(1, 2).contiguous().transpose(1, 2);
  return {rows.codes, rows.row_factors(), matrices,
          weights.decode.unsqueeze(1).expand({groups, forward ? out : in}).contiguous()};
}

bool multiplies_grouped_codes(Recipe recipe, int capability) {
  return std::any_of(std::begin(kRows), std::end(kRows), [&](const ProductRow& row) {
    return row.recipe == recipe && row.grouped_from > 0 &&
           (capability == 0 || (row.grouped_from <= capability && capability < row.grouped_below));
  });
}

at::Tensor scaled_grouped_product(const device::Target& target, const GroupedCodes& operands, const at::Tensor& ends,
                                  double fill, const std::string& layer) {
  const int64_t m = operands.rows.size(0), k = operands.rows.size(1), n = operands.matrices.size(2);
  check_sizes(layer, {n, k});
  const bool computes = !target.meta && m > 0;
  const at::Tensor out = computes
                             ? at::_scaled_grouped_mm(operands.rows, operands.matrices, operands.row_factors,
                                                      operands.column_factors, ends, {}, {}, at::kBFloat16, false)
                             : at::empty({m, n}, operands.rows.options().dtype(at::kBFloat16));
  const double flops = 2.0 * fill * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  device::issued(target, {"scaled_grouped_mm", {&operands.rows, &operands.matrices}, {&out}, {}, flops});
  return out;
}

}  // namespace metroplex::nn
