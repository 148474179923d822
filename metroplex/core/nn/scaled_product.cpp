#include "nn/scaled_product.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>

#include <algorithm>

#include "base/error.h"
#include "base/round_up.h"
#include "device/code_product.h"
#include "kernels/encode_matrix.h"
#include "nn/matmul.h"
#include "nn/wide.h"

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
  int grouped_from = 0, grouped_below = 0;  // products of groups, whose kernels are of sm_90 and sm_100
};
constexpr ProductRow kRows[] = {{Recipe::delayed, 89, 1000, "8.9 or higher", 90, 100},
                                {Recipe::tensorwise, 89, 1000, "8.9 or higher", 90, 100},
                                {Recipe::blockwise, 90, 100, "9.0"},
                                {Recipe::mxfp8, 100, 110, "10.0 or 10.3", 100, 101},
                                {Recipe::nvfp4, 100, 1000, "10.0 or higher"}};

// Pairs of 4-bit codes -> one code in each byte.
at::Tensor split_pairs(const at::Tensor& pairs) {
  const at::Tensor bytes = pairs.view(at::kByte);
  return at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, 2).view({bytes.size(0), -1});
}

// E2M1 -> fp32. Exponent and fraction bits of a code are those of 2^-6 times its value in E4M3.
at::Tensor pair_values(const at::Tensor& pairs) {
  const at::Tensor codes = split_pairs(pairs);
  const at::Tensor small =
      codes.bitwise_and(7).bitwise_left_shift(2).bitwise_or_(codes.bitwise_and(8).bitwise_left_shift(4));
  return small.view(at::kFloat8_e4m3fn).to(at::kFloat).mul_(64);
}

// [.., R, C] -> [.., R and C rounded up], filled up with zeros.
at::Tensor pad(const at::Tensor& x, int64_t rows, int64_t columns) {
  return at::constant_pad_nd(
      x, {0, base::round_up(x.size(-1), columns) - x.size(-1), 0, base::round_up(x.size(-2), rows) - x.size(-2)});
}

// Powers of two -> E8M0: the exponent bits of fp32.
at::Tensor exponent_codes(const at::Tensor& powers) {
  constexpr int64_t kFractionBits = 23;
  return powers.contiguous().view(at::kInt).bitwise_right_shift(kFractionBits).to(at::kByte);
}

constexpr int64_t kTileRows = 128, kTileBlocks = 4;

// Bytes [matrices, rows, blocks] -> [matrices, bytes in tiles].
at::Tensor swizzle(const at::Tensor& bytes) {
  constexpr int64_t kTileParts = 4;
  const at::Tensor whole = pad(bytes, kTileRows, kTileBlocks);
  const int64_t matrices = whole.size(0), tiles = whole.size(1) / kTileRows, across = whole.size(2) / kTileBlocks;
  return whole.view({matrices, tiles, kTileParts, kTileRows / kTileParts, across, kTileBlocks})
      .permute({0, 1, 4, 3, 2, 5})
      .contiguous()
      .view({matrices, tiles * kTileRows * across * kTileBlocks});
}

// The group of each of `rows` rows; the last one after all groups.
at::Tensor find_groups(const at::Tensor& counts, int64_t rows) {
  const at::Tensor group = at::searchsorted(counts.cumsum(0), at::arange(rows, counts.options()), false, true);
  return group.clamp_max(counts.numel() - 1);
}

// Rows of groups, where each group begins a tile. The number of rows does not depend on `counts`, which are read on
// the device: the groups need at most one tile each in addition to rows / 128. Rows after the groups fill the end of
// the last group's tile and later tiles.
at::Tensor pad_groups(const at::Tensor& x, const at::Tensor& counts) {
  const int64_t rows = x.size(0), tiles = rows / kTileRows + counts.numel();
  at::Tensor out = at::zeros({tiles * kTileRows, x.size(1)}, x.options());
  if (x.is_meta()) return out;  // searchsorted has no version for meta tensors
  const at::Tensor padding = counts.neg().remainder(kTileRows), shift = padding.cumsum(0).sub_(padding);
  out.index_copy_(0, at::arange(rows, counts.options()).add_(shift.index_select(0, find_groups(counts, rows))), x);
  return out;
}

// at::repeat_interleave needs no host value with a number as the count.
at::Tensor repeat(const at::Tensor& x, int64_t dim, int64_t count, int64_t size) {
  return count == 1 ? x : at::repeat_interleave(x, count, dim).narrow(dim, 0, size);
}

int64_t number(auto enumerator) { return static_cast<int64_t>(enumerator); }

at::Tensor multiply_groups(const GroupedCodes& operands, const at::Tensor& ends) {
  const auto& [rows, matrices, row_factors, column_factors, has_blocks] = operands;
  if (!has_blocks)
    return at::_scaled_grouped_mm(rows, matrices, row_factors, column_factors, ends, {}, {}, at::kBFloat16, false);
  const int64_t scaling = number(ScalingType::BlockWise1x32), tiles = number(SwizzleType::SWIZZLE_32_4_4);
  return at::_scaled_grouped_mm_v2(rows, matrices, {row_factors}, {scaling}, {tiles}, {column_factors}, {scaling},
                                   {tiles}, ends, {}, at::kBFloat16);
}

// Whole blocks of one dimension of a matrix, or its last block if that is not whole.
struct BlockRange {
  int64_t begin, count, size, first;  // first element; number and size of the blocks; number of the first one
};
std::vector<BlockRange> cut_blocks(int64_t length, int64_t size) {
  const int64_t whole = length / size, rest = length % size;
  std::vector<BlockRange> cuts;
  if (whole > 0) cuts.push_back({0, whole, size, 0});
  if (rest > 0) cuts.push_back({whole * size, 1, rest, whole});
  return cuts;
}

// Multiplies x [rows, columns] by the factors of its blocks, without a tensor of the same size. Two dtypes would need
// copies of x: factors are converted, which is exact because half results have powers of two.
void multiply_blocks(const at::Tensor& x, const at::Tensor& factors, int64_t block_rows, int64_t block_columns) {
  const at::Tensor by = factors.to(x.scalar_type());
  for (const BlockRange& down : cut_blocks(x.size(0), block_rows)) {
    for (const BlockRange& across : cut_blocks(x.size(1), block_columns)) {
      const at::Tensor blocks = x.narrow(0, down.begin, down.count * down.size)
                                    .narrow(1, across.begin, across.count * across.size)
                                    .unflatten(1, {across.count, across.size})
                                    .unflatten(0, {down.count, down.size});
      const at::Tensor of_blocks = by.narrow(0, down.first, down.count).narrow(1, across.first, across.count);
      blocks.mul_(of_blocks.unsqueeze(1).unsqueeze(3));
    }
  }
}

double product_flops(const Codes& left, const Codes& right) {
  return 2.0 * static_cast<double>(left.codes.size(0)) * static_cast<double>(right.codes.size(0)) *
         static_cast<double>(left.columns());
}

void check_code_sizes(const Codes& left, const Codes& right, const std::string& layer) {
  const int64_t m = left.codes.size(0), k = left.columns(), n = right.codes.size(0);
  check_product_sizes(layer, {n, k, left.has_blocks() ? m : n});
  if (left.has_pairs()) check_product_sizes(layer, {k}, 32);  // 16 bytes of a row
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
  at::_scaled_mm_v2_out(result, left.codes, right.codes.t(), of_left.factors, of_left.scaling, of_left.swizzle,
                        of_right.factors, of_right.scaling, of_right.swizzle, {}, type, {}, false);
}

}  // namespace

int64_t Codes::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& part : {codes, decode, tensor_decode})
    sum += part.defined() ? static_cast<int64_t>(part.nbytes()) : 0;
  return sum;
}

Codes transpose(const device::Target& target, const Codes& codes, Codes out) {
  const int64_t rows = codes.codes.size(0), columns = codes.columns(), stored = rows / (codes.has_pairs() ? 2 : 1);
  if (!out.codes.defined()) {
    out = {at::empty({columns, stored}, codes.codes.options()),
           {},
           codes.block_columns,
           codes.block_rows,
           {},
           codes.tensor_decode};
    out.decode = at::empty_like(codes.has_blocks() ? codes.decode.t() : codes.decode, at::MemoryFormat::Contiguous);
  } else if (codes.has_pairs()) {
    out.tensor_decode.copy_(codes.tensor_decode);
  }
  out.decode.copy_(codes.has_blocks() ? codes.decode.t() : codes.decode);
  device::launch(target, {"transpose_codes", {&codes.codes}, {&out.codes}, {{"pairs", codes.has_pairs()}}},
                 kernels::transpose_codes, kernels::transpose_codes_cuda,
                 static_cast<uint8_t*>(out.codes.mutable_data_ptr()),
                 static_cast<const uint8_t*>(codes.codes.const_data_ptr()), rows, columns, codes.has_pairs());
  return out;
}

at::Tensor Codes::row_factors() const {
  const int64_t rows = codes.size(0);
  if (codes.is_meta()) return at::empty({rows}, decode.options());  // searchsorted has no version for meta tensors
  if (!counts.defined()) return at::repeat_interleave(decode, rows / decode.size(0), 0);
  return decode.index_select(0, find_groups(counts, rows));
}

at::Tensor Codes::values(at::Tensor out) const {
  const at::Tensor factors = has_pairs() ? decode.to(at::kFloat).mul_(tensor_decode) : decode;
  if (!out.defined()) out = at::empty({codes.size(0), columns()}, factors.options());
  out.copy_(has_pairs() ? pair_values(codes) : codes);
  if (!has_blocks()) return out.mul_(row_factors().unsqueeze(1));
  multiply_blocks(out, factors, block_rows, block_columns);
  return out;
}

LibraryFactors library_factors(const Codes& operand) {
  const int64_t plain = number(SwizzleType::NO_SWIZZLE), tiles = number(SwizzleType::SWIZZLE_32_4_4);
  if (!operand.has_blocks()) return {{operand.decode}, {number(ScalingType::TensorWise)}, {plain}};
  if (operand.has_pairs()) {
    const at::Tensor rows = repeat(operand.decode.view(at::kByte), 0, operand.block_rows, operand.codes.size(0));
    return {{swizzle(rows.unsqueeze(0)).view({-1}).view(at::kFloat8_e4m3fn), operand.tensor_decode},
            {number(ScalingType::BlockWise1x16), number(ScalingType::TensorWise)},
            {tiles, plain}};
  }
  if (operand.block_rows > 1)
    return {{pad(operand.decode, 1, kTileBlocks).t()}, {number(ScalingType::BlockWise128x128)}, {plain}};
  if (operand.block_columns == config::operand_block(Recipe::blockwise))
    return {{operand.decode.t().contiguous().t()}, {number(ScalingType::BlockWise1x128)}, {plain}};
  return {{swizzle(exponent_codes(operand.decode).unsqueeze(0)).view({-1}).view(at::kFloat8_e8m0fnu)},
          {number(ScalingType::BlockWise1x32)},
          {tiles}};
}

void check_product_sizes(const std::string& layer, std::initializer_list<int64_t> sizes, int64_t multiple) {
  for (const int64_t size : sizes) {
    MPX_CHECK(size % multiple == 0, "config", "precision.fp8_products = library: ", layer,
              " multiplies matrices with a dimension of ", size, ", but the library needs multiples of ", multiple,
              "; change the widths or the number of tokens, or set it to widened");
  }
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
  check_code_sizes(left, right, layer);
  const int64_t m = left.codes.size(0);
  at::Tensor out = at::empty({m, right.codes.size(0)}, left.codes.options().dtype(type));
  const bool decodes = left.has_blocks() && !target.gpu();
  if (m > 0 && decodes) out.copy_(at::mm(left.values(), right.values().t()));
  if (m > 0 && !decodes && !target.meta) multiply_by_library(out, left, right);
  device::issued(target, {"scaled_mm", {&left.codes, &right.codes}, {&out}, {}, product_flops(left, right)});
  return out;
}

void put_scaled_product(const device::Target& target, const at::Tensor& gradient, const Codes& left,
                        const Codes& right, const std::string& layer, bool adds) {
  const at::ScalarType type = is_half(gradient) ? gradient.scalar_type() : at::kFloat;
  if (target.gpu() && gradient.scalar_type() == type && left.codes.size(0) > 0) {
    check_code_sizes(left, right, layer);
    const LibraryFactors of_left = library_factors(left), of_right = library_factors(right);
    const at::Tensor scale = left.has_pairs() ? left.tensor_decode * right.tensor_decode : at::Tensor();
    const device::CodeProduct product{{left.codes, of_left.factors[0], static_cast<int>(of_left.scaling[0])},
                                      {right.codes, of_right.factors[0], static_cast<int>(of_right.scaling[0])},
                                      gradient,
                                      adds,
                                      scale};
    if (target.meta || device::multiply_codes(product)) {
      device::issued(target, {"scaled_mm",
                              {adds ? &gradient : nullptr, &left.codes, &right.codes},
                              {&gradient},
                              {},
                              product_flops(left, right)});
      return;
    }
  }
  put_product(target, gradient, scaled_product(target, left, right, type, layer), adds);
}

GroupedCodes grouped_codes(const Codes& rows, const Codes& weights, bool forward) {
  const bool blocks = weights.has_blocks();
  const int64_t groups = blocks ? rows.counts.numel() : weights.decode.size(0), in = weights.codes.size(1),
                out = weights.codes.size(0) / groups;
  const at::Tensor stack = weights.codes.view({groups, out, in});
  const at::Tensor matrices = forward ? stack.transpose(1, 2) : stack.transpose(1, 2).contiguous().transpose(1, 2);
  if (!blocks)
    return {rows.codes, matrices, rows.row_factors(),
            weights.decode.unsqueeze(1).expand({groups, forward ? out : in}).contiguous()};
  const at::Tensor padded = pad_groups(exponent_codes(rows.decode), rows.counts),
                   stacked = exponent_codes(weights.decode).view({groups, -1, weights.decode.size(1)});
  return {rows.codes, matrices, swizzle(padded.unsqueeze(0)).view({padded.size(0), -1}).view(at::kFloat8_e8m0fnu),
          swizzle(forward ? stacked : stacked.transpose(1, 2)).view(at::kFloat8_e8m0fnu), true};
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
  check_product_sizes(layer, {n, k});
  if (operands.has_blocks) check_product_sizes(layer, {k}, config::operand_block(Recipe::mxfp8));
  const bool computes = !target.meta && m > 0;
  const at::Tensor out =
      computes ? multiply_groups(operands, ends) : at::empty({m, n}, operands.rows.options().dtype(at::kBFloat16));
  const double flops = 2.0 * fill * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  device::issued(target, {"scaled_grouped_mm", {&operands.rows, &operands.matrices}, {&out}, {}, flops});
  return out;
}

}  // namespace metroplex::nn
