// The operands of libtorch's products of codes with blocks: the layouts of their factors against the layouts'
// definitions (checks of at::_scaled_mm_v2 in libtorch 2.11; cuBLAS, "1D block scaling factors layout"). The products
// need a GPU.
#include "nn/scaled_product.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "nn/tools.h"
#include "support/error_of.h"

namespace metroplex::test::scaled_product_test {
namespace {

using at::blas::ScalingType;
using at::blas::SwizzleType;

// Codes of random values whose factors are different powers of two.
nn::Codes make_codes(int64_t rows, int64_t columns, int64_t block_rows, int64_t block_columns) {
  const int64_t down = (rows + block_rows - 1) / block_rows, across = (columns + block_columns - 1) / block_columns;
  const at::Tensor powers = at::arange(down * across, at::kFloat).remainder(97).sub(50).view({down, across});
  return {sample({rows, columns}, 1, at::kFloat).to(at::kFloat8_e4m3fn), at::exp2(powers), block_rows, block_columns};
}

void expect_kinds(const nn::LibraryFactors& got, const std::vector<ScalingType>& scaling,
                  const std::vector<SwizzleType>& swizzle) {
  const auto numbers = [](const auto& kinds) {
    std::vector<int64_t> all;
    for (const auto kind : kinds) all.push_back(static_cast<int64_t>(kind));
    return all;
  };
  EXPECT_EQ(got.scaling, numbers(scaling));
  EXPECT_EQ(got.swizzle, numbers(swizzle));
}

// Calls expect(row, block, byte) for every factor in tiles of 128 rows and 4 blocks. The other bytes must be 0,
// unless they are `unspecified`.
template <class Expect>
void expect_tiles(const at::Tensor& factors, int64_t rows, int64_t blocks, const Expect& expect,
                  bool unspecified = false) {
  const int64_t across = (blocks + 3) / 4;
  EXPECT_TRUE(factors.is_contiguous());
  ASSERT_EQ(factors.numel(), (rows + 127) / 128 * across * 512);
  at::Tensor rest = factors.view(at::kByte).clone();
  auto* const bytes = static_cast<uint8_t*>(rest.mutable_data_ptr());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t tile = row / 128 * across + block / 4, offset = row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
      expect(row, block, bytes[tile * 512 + offset]);
      bytes[tile * 512 + offset] = 0;
    }
  }
  EXPECT_TRUE(unspecified || rest.count_nonzero().item<int64_t>() == 0);
}

float at_offset(const at::Tensor& factors, int64_t offset) { return factors.const_data_ptr<float>()[offset]; }

TEST(ScaledProduct, RowBlocksAreStoredByColumns) {
  const nn::Codes operand = make_codes(24, 300, 1, 128);
  const nn::LibraryFactors got = nn::library_factors(operand);
  expect_kinds(got, {ScalingType::BlockWise1x128}, {SwizzleType::NO_SWIZZLE});
  EXPECT_EQ(got.factors[0].sizes(), at::IntArrayRef({24, 3}));
  EXPECT_EQ(got.factors[0].strides(), at::IntArrayRef({1, 24}));
  for (int64_t row = 0; row < 24; ++row)
    for (int64_t block = 0; block < 3; ++block)
      EXPECT_EQ(at_offset(got.factors[0], block * 24 + row), operand.decode[row][block].item<float>());
}

TEST(ScaledProduct, SquareBlocksArePaddedToFour) {
  const nn::Codes operand = make_codes(400, 700, 128, 128);
  const nn::LibraryFactors got = nn::library_factors(operand);
  expect_kinds(got, {ScalingType::BlockWise128x128}, {SwizzleType::NO_SWIZZLE});
  EXPECT_EQ(got.factors[0].sizes(), at::IntArrayRef({8, 4}));  // 6 blocks of columns
  EXPECT_EQ(got.factors[0].strides(), at::IntArrayRef({1, 8}));
  for (int64_t row = 0; row < 4; ++row)
    for (int64_t block = 0; block < 6; ++block)
      EXPECT_EQ(at_offset(got.factors[0], row * 8 + block), operand.decode[row][block].item<float>());
}

// Tiles of 128 rows and 4 blocks, the tiles of 128 rows one after another. In a tile, the factors of rows r, r + 32,
// r + 64 and r + 96 are 16 consecutive bytes.
TEST(ScaledProduct, BlocksOf32AreSwizzled) {
  constexpr int64_t kRows = 150, kBlocks = 6;
  const nn::Codes operand = make_codes(kRows, 32 * kBlocks - 16, 1, 32);
  const nn::LibraryFactors got = nn::library_factors(operand);
  expect_kinds(got, {ScalingType::BlockWise1x32}, {SwizzleType::SWIZZLE_32_4_4});
  EXPECT_EQ(got.factors[0].scalar_type(), at::kFloat8_e8m0fnu);
  expect_tiles(got.factors[0], kRows, kBlocks, [&](int64_t row, int64_t block, uint8_t code) {
    EXPECT_EQ(std::ldexp(1.0F, code - 127), operand.decode[row][block].item<float>());
  });
}

// Codes of every value, with factors of different numbers.
nn::Codes make_pairs(int64_t rows, int64_t columns, int64_t block_rows, int64_t block_columns) {
  const int64_t down = (rows + block_rows - 1) / block_rows, across = (columns + block_columns - 1) / block_columns;
  const at::Tensor codes = at::arange(rows * columns / 2, at::kLong).mul(37).to(at::kByte).view({rows, columns / 2}),
                   factors = at::arange(down * across, at::kLong).remainder(120).add(1).to(at::kByte);
  return {codes.view(at::kFloat4_e2m1fn_x2),
          factors.view({down, across}).view(at::kFloat8_e4m3fn),
          block_rows,
          block_columns,
          {},
          at::full({1}, 0.3F)};
}

// The same tiles for blocks of 16, of which every row of a square block has a factor.
TEST(ScaledProduct, BlocksOf16AreSwizzled) {
  constexpr int64_t kRows = 150, kBlocks = 6;
  for (const int64_t block_rows : {1, 16}) {
    const nn::Codes operand = make_pairs(kRows, 16 * kBlocks - 14, block_rows, 16);
    const nn::LibraryFactors got = nn::library_factors(operand);
    expect_kinds(got, {ScalingType::BlockWise1x16, ScalingType::TensorWise},
                 {SwizzleType::SWIZZLE_32_4_4, SwizzleType::NO_SWIZZLE});
    ASSERT_EQ(got.factors.size(), size_t{2});
    EXPECT_EQ(got.factors[0].scalar_type(), at::kFloat8_e4m3fn);
    EXPECT_EQ(got.factors[1].scalar_type(), at::kFloat);
    EXPECT_EQ(got.factors[1].item<float>(), 0.3F);
    const at::Tensor codes = operand.decode.view(at::kByte);
    expect_tiles(got.factors[0], kRows, kBlocks, [&](int64_t row, int64_t block, uint8_t code) {
      EXPECT_EQ(code, codes[row / block_rows][block].item<uint8_t>());
    });
  }
}

// The values of all 16 codes (OCP Microscaling Formats Specification 1.0, section 5.3.3) with the factors of their
// blocks, also after a transposition.
TEST(ScaledProduct, PairsHaveTheValuesOfTheFormat) {
  constexpr float kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  constexpr int64_t kRows = 40, kColumns = 70;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 16}, {16, 1}, {16, 16}}) {
    const nn::Codes operand = make_pairs(kRows, kColumns, rows, columns);
    EXPECT_EQ(operand.columns(), kColumns);
    const at::Tensor values = operand.values(), bytes = operand.codes.view(at::kByte);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        const int code = bytes[row][column / 2].item<uint8_t>() >> (column % 2 * 4) & 15;
        const float factor = operand.decode[row / rows][column / columns].item<float>() * 0.3F,
                    value = kValues[code & 7] * (code > 7 ? -1.0F : 1.0F);
        ASSERT_EQ(std::bit_cast<uint32_t>(values[row][column].item<float>()),
                  std::bit_cast<uint32_t>(value * factor));
      }
    }
    const nn::Codes other = nn::transpose({}, operand);
    EXPECT_EQ(other.codes.sizes(), at::IntArrayRef({kColumns, kRows / 2}));
    EXPECT_TRUE(other.values().equal(values.t()));
    EXPECT_TRUE(nn::transpose({}, other).codes.view(at::kByte).equal(bytes));
    EXPECT_EQ(operand.bytes(), kRows * kColumns / 2 + operand.decode.numel() + 4);
  }
}

// Shapes without values, as in a plan.
// Multiples of 8 below 1,024, which bf16 represents.
TEST(ScaledProduct, IsAddedToAGradient) {
  const auto codes = [](int64_t rows, double factor) {
    const at::Tensor numbers = at::arange(rows * 16, at::kFloat).remainder(3).view({rows, 16});
    return nn::Codes{numbers.to(at::kFloat8_e4m3fn), at::full({1}, factor, at::kFloat)};
  };
  const nn::Codes left = codes(32, 2), right = codes(48, 4);
  const at::Tensor product = left.values().mm(right.values().t());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const bool adds : {false, true}) {
      const at::Tensor gradient = at::full({32, 48}, 8, type);
      nn::put_scaled_product({}, gradient, left, right, "l", adds);
      EXPECT_TRUE(gradient.equal((product + (adds ? 8 : 0)).to(type))) << at::toString(type) << adds;
    }
  }
}

TEST(ScaledProduct, PairsNeedMultiplesOf32) {
  device::Target target;
  target.meta = true;
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto pairs = [&](int64_t rows, int64_t columns) {
    return nn::Codes{at::empty({rows, columns / 2}, meta.dtype(at::kFloat4_e2m1fn_x2)),
                     at::empty({rows, (columns + 15) / 16}, meta.dtype(at::kFloat8_e4m3fn)),
                     1,
                     16,
                     {},
                     at::empty({1}, meta)};
  };
  const auto multiply = [&](int64_t m, int64_t n, int64_t k) {
    return nn::scaled_product(target, pairs(m, k), pairs(n, k), at::kBFloat16, "l");
  };
  EXPECT_EQ(multiply(48, 80, 64).sizes(), at::IntArrayRef({48, 80}));
  EXPECT_EQ(multiply(48, 80, 64).scalar_type(), at::kBFloat16);
  EXPECT_EQ(nn::transpose(target, pairs(48, 80)).codes.sizes(), at::IntArrayRef({80, 24}));
  EXPECT_EQ(pairs(48, 80).values().sizes(), at::IntArrayRef({48, 80}));
  const auto refused = [&](int64_t m, int64_t n, int64_t k, const char* what) {
    const std::string error = catch_error([&] { multiply(m, n, k); });
    EXPECT_NE(error.find(what), std::string::npos) << error;
    EXPECT_NE(error.find("change the widths or the number of tokens"), std::string::npos) << error;
  };
  refused(48, 80, 48, "l multiplies matrices with a dimension of 48, but the library needs multiples of 32");
  refused(40, 80, 64, "l multiplies matrices with a dimension of 40, but the library needs multiples of 16");
  refused(48, 72, 64, "l multiplies matrices with a dimension of 72, but the library needs multiples of 16");
}

// Each code is multiplied by the factor of its block, also after a transposition.
TEST(ScaledProduct, ValuesFollowTheirBlocks) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 32}, {32, 1}, {128, 128}}) {
    const nn::Codes operand = make_codes(140, 150, rows, columns);
    const at::Tensor values = operand.values(), plain = operand.codes.to(at::kFloat);
    for (int64_t row = 0; row < 140; row += 9)
      for (int64_t column = 0; column < 150; column += 7)
        EXPECT_EQ(values[row][column].item<float>(),
                  (plain[row][column] * operand.decode[row / rows][column / columns]).item<float>());
    EXPECT_TRUE(nn::transpose({}, operand).values().equal(values.t()));
    EXPECT_TRUE(nn::transpose({}, operand).codes.is_contiguous());
  }
}

// The arguments of at::_scaled_grouped_mm as its checks in libtorch 2.11 require them, and its definition: codes
// times the factors of rows and columns are the values of both operands.
TEST(ScaledProduct, GroupsHaveFactorsOfRowsAndColumns) {
  const at::Tensor counts = at::tensor(std::vector<int64_t>{5, 0, 9}, at::kLong),
                   factors = at::tensor({0.5F, 3.0F, 7.0F});
  for (const bool forward : {true, false}) {
    const int64_t in = 32, out = 48, inner = forward ? in : out, width = forward ? out : in;
    const nn::Codes rows{sample({16, inner}, 1, at::kFloat).to(at::kFloat8_e4m3fn), factors, 0, 0, counts},
        weights{sample({3 * out, in}, 2, at::kFloat).to(at::kFloat8_e4m3fn), factors * 2};
    const nn::GroupedCodes got = nn::grouped_codes(rows, weights, forward);
    EXPECT_EQ(got.matrices.sizes(), at::IntArrayRef({3, inner, width}));
    EXPECT_EQ(got.matrices.strides(), at::IntArrayRef({inner * width, 1, inner}));
    EXPECT_TRUE(got.rows.is_contiguous() && got.row_factors.is_contiguous() && got.column_factors.is_contiguous());
    EXPECT_EQ(got.row_factors.sizes(), at::IntArrayRef({16}));
    EXPECT_EQ(got.column_factors.sizes(), at::IntArrayRef({3, width}));
    const at::Tensor values = got.rows.to(at::kFloat) * got.row_factors.unsqueeze(1),
                     stack = got.matrices.to(at::kFloat) * got.column_factors.unsqueeze(1);
    EXPECT_TRUE(values.narrow(0, 0, 14).equal(rows.values().narrow(0, 0, 14)));
    const at::Tensor expected = weights.values().view({3, out, in});
    EXPECT_TRUE(stack.equal(forward ? expected.transpose(1, 2) : expected));
    for (int64_t row = 0; row < 14; ++row) EXPECT_EQ(got.row_factors[row].item<float>(), row < 5 ? 0.5F : 7.0F);
  }
}

// Each group's factors are tiles of their own, at the sum of the whole tiles of the groups before it (offsets of
// libtorch 2.11's grouped product with 1 x 32 blocks). Rows after the groups may have factors in the last tiles.
TEST(ScaledProduct, GroupsBeginTiles) {
  const std::vector<int64_t> counts = {5, 130, 0, 128, 9};
  const auto groups = static_cast<int64_t>(counts.size());
  for (const bool forward : {true, false}) {
    constexpr int64_t kRows = 280, kIn = 160, kOut = 192;
    const int64_t inner = forward ? kIn : kOut, width = forward ? kOut : kIn, blocks = inner / 32;
    nn::Codes rows = make_codes(kRows, inner, 1, 32);
    rows.counts = at::tensor(counts, at::kLong);
    const nn::Codes weights = make_codes(groups * kOut, kIn, forward ? 1 : 32, forward ? 32 : 1);
    const nn::GroupedCodes got = nn::grouped_codes(rows, weights, forward);
    EXPECT_TRUE(got.has_blocks);
    EXPECT_TRUE(got.rows.is_same(rows.codes));
    EXPECT_EQ(got.matrices.sizes(), at::IntArrayRef({groups, inner, width}));
    EXPECT_EQ(got.matrices.strides(), at::IntArrayRef({inner * width, 1, inner}));
    EXPECT_EQ(got.row_factors.scalar_type(), at::kFloat8_e8m0fnu);
    EXPECT_EQ(got.column_factors.scalar_type(), at::kFloat8_e8m0fnu);
    EXPECT_GE(got.row_factors.size(0), kRows);
    EXPECT_EQ(got.row_factors.size(0) % 128, 0);
    EXPECT_EQ(got.row_factors.size(1), 8);  // 5 or 6 blocks
    const at::Tensor bytes = got.row_factors.view(at::kByte).view({-1});
    const int64_t end = at::tensor(counts).sum().item<int64_t>();
    int64_t first = 0, tiles = 0;
    for (const int64_t count : counts) {
      const int64_t own = (count + 127) / 128;
      expect_tiles(
          bytes.narrow(0, tiles * 1024, own * 1024), count, blocks,
          [&](int64_t row, int64_t block, uint8_t code) {
            EXPECT_EQ(std::ldexp(1.0F, code - 127), rows.decode[first + row][block].item<float>());
          },
          first + count == end);
      first += count, tiles += own;
    }
    ASSERT_EQ(got.column_factors.size(0), groups);
    for (int64_t group = 0; group < groups; ++group) {
      expect_tiles(got.column_factors[group], width, blocks, [&](int64_t row, int64_t block, uint8_t code) {
        const at::Tensor factor =
            forward ? weights.decode[group * kOut + row][block] : weights.decode[group * blocks + block][row];
        EXPECT_EQ(std::ldexp(1.0F, code - 127), factor.item<float>());
      });
    }
  }
}

TEST(ScaledProduct, GroupsWithBlocksNeedMultiplesOf32) {
  device::Target target;
  target.meta = true;
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor counts = at::empty({3}, meta.dtype(at::kLong)), ends = at::empty({3}, meta.dtype(at::kInt));
  const auto multiply = [&](int64_t in, int64_t out) {
    const auto codes = [&](int64_t rows) {
      return nn::Codes{at::empty({rows, in}, meta.dtype(at::kFloat8_e4m3fn)),
                       at::empty({rows, (in + 31) / 32}, meta.dtype(at::kFloat)), 1, 32, counts};
    };
    return nn::scaled_grouped_product(target, nn::grouped_codes(codes(40), codes(3 * out), true), ends, 1, "l");
  };
  EXPECT_EQ(multiply(64, 48).sizes(), at::IntArrayRef({40, 48}));
  EXPECT_EQ(multiply(64, 48).scalar_type(), at::kBFloat16);
  const std::string error = catch_error([&] { multiply(48, 64); });
  EXPECT_NE(error.find("l multiplies matrices with a dimension of 48, but the library needs multiples of 32"),
            std::string::npos)
      << error;
}

TEST(ScaledProduct, GroupsNeedTheirArchitectures) {
  for (const int capability : {0, 89, 90, 100, 103, 120}) {
    const bool takes = capability == 0 || capability == 90;
    EXPECT_EQ(nn::multiplies_grouped_codes(config::Recipe::mxfp8, capability), capability == 0 || capability == 100)
        << capability;
    EXPECT_FALSE(nn::multiplies_grouped_codes(config::Recipe::nvfp4, capability));
    EXPECT_EQ(nn::multiplies_grouped_codes(config::Recipe::tensorwise, capability), takes) << capability;
    EXPECT_EQ(nn::multiplies_grouped_codes(config::Recipe::delayed, capability), takes) << capability;
    EXPECT_FALSE(nn::multiplies_grouped_codes(config::Recipe::blockwise, capability));
  }
  device::Target target;
  target.meta = true;
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto codes = [&](int64_t rows, int64_t columns, int64_t groups) {
    return nn::Codes{at::empty({rows, columns}, meta.dtype(at::kFloat8_e4m3fn)), at::empty({groups}, meta)};
  };
  const at::Tensor ends = at::empty({3}, meta.dtype(at::kInt));
  const at::Tensor y = nn::scaled_grouped_product(
      target, nn::grouped_codes(codes(16, 32, 3), codes(3 * 48, 32, 3), true), ends, 1, "l");
  EXPECT_EQ(y.sizes(), at::IntArrayRef({16, 48}));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const std::string error = catch_error([&] {
    nn::scaled_grouped_product(target, nn::grouped_codes(codes(16, 40, 3), codes(3 * 48, 40, 3), true), ends, 1, "l");
  });
  EXPECT_NE(error.find("l multiplies matrices with a dimension of 40"), std::string::npos) << error;
}

TEST(ScaledProduct, RecipesNeedTheirArchitectures) {
  using config::Recipe;
  const auto refused = [](Recipe recipe, int capability) {
    return !catch_error([&] { nn::check_code_product(recipe, capability); }).empty();
  };
  for (const int capability : {0, 80, 86, 89, 90, 100, 103, 120}) {
    const bool tensor = capability == 0 || capability >= 89, block = capability == 0 || capability == 90,
               mx = capability == 0 || capability == 100 || capability == 103,
               fp4 = capability == 0 || capability >= 100;
    EXPECT_EQ(refused(Recipe::delayed, capability), !tensor) << capability;
    EXPECT_EQ(refused(Recipe::tensorwise, capability), !tensor) << capability;
    EXPECT_EQ(refused(Recipe::blockwise, capability), !block) << capability;
    EXPECT_EQ(refused(Recipe::mxfp8, capability), !mx) << capability;
    EXPECT_EQ(refused(Recipe::nvfp4, capability), !fp4) << capability;
  }
  const std::string error = catch_error([] { nn::check_code_product(Recipe::mxfp8, 90); });
  EXPECT_NE(
      error.find("precision.fp8_recipe = mxfp8 needs a GPU of compute capability 10.0 or 10.3, but this one has "
                 "9.0; set it to widened"),
      std::string::npos)
      << error;
}

}  // namespace
}  // namespace metroplex::test::scaled_product_test
