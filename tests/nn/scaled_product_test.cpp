// The operands of libtorch's products of codes with blocks: the layouts of their factors against the layouts'
// definitions (checks of at::_scaled_mm_v2 in libtorch 2.11; cuBLAS, "1D block scaling factors layout"). The products
// need a GPU.
#include "nn/scaled_product.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>
#include <gtest/gtest.h>

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

float at_offset(const at::Tensor& factors, int64_t offset) { return factors.const_data_ptr<float>()[offset]; }

TEST(ScaledProduct, RowBlocksAreStoredByColumns) {
  const nn::Codes operand = make_codes(24, 300, 1, 128);
  const nn::LibraryFactors got = nn::library_factors(operand);
  EXPECT_EQ(got.scaling, static_cast<int64_t>(ScalingType::BlockWise1x128));
  EXPECT_EQ(got.swizzle, static_cast<int64_t>(SwizzleType::NO_SWIZZLE));
  EXPECT_EQ(got.factors.sizes(), at::IntArrayRef({24, 3}));
  EXPECT_EQ(got.factors.strides(), at::IntArrayRef({1, 24}));
  for (int64_t row = 0; row < 24; ++row)
    for (int64_t block = 0; block < 3; ++block)
      EXPECT_EQ(at_offset(got.factors, block * 24 + row), operand.decode[row][block].item<float>());
}

TEST(ScaledProduct, SquareBlocksArePaddedToFour) {
  const nn::Codes operand = make_codes(400, 700, 128, 128);
  const nn::LibraryFactors got = nn::library_factors(operand);
  EXPECT_EQ(got.scaling, static_cast<int64_t>(ScalingType::BlockWise128x128));
  EXPECT_EQ(got.factors.sizes(), at::IntArrayRef({8, 4}));  // 6 blocks of columns
  EXPECT_EQ(got.factors.strides(), at::IntArrayRef({1, 8}));
  for (int64_t row = 0; row < 4; ++row)
    for (int64_t block = 0; block < 6; ++block)
      EXPECT_EQ(at_offset(got.factors, row * 8 + block), operand.decode[row][block].item<float>());
}

// Tiles of 128 rows and 4 blocks, the tiles of 128 rows one after another. In a tile, the factors of rows r, r + 32,
// r + 64 and r + 96 are 16 consecutive bytes.
TEST(ScaledProduct, BlocksOf32AreSwizzled) {
  constexpr int64_t kRows = 150, kBlocks = 6;
  const nn::Codes operand = make_codes(kRows, 32 * kBlocks - 16, 1, 32);
  const nn::LibraryFactors got = nn::library_factors(operand);
  EXPECT_EQ(got.scaling, static_cast<int64_t>(ScalingType::BlockWise1x32));
  EXPECT_EQ(got.swizzle, static_cast<int64_t>(SwizzleType::SWIZZLE_32_4_4));
  EXPECT_EQ(got.factors.scalar_type(), at::kFloat8_e8m0fnu);
  EXPECT_TRUE(got.factors.is_contiguous());
  ASSERT_EQ(got.factors.numel(), 256 * 8);
  at::Tensor rest = got.factors.view(at::kByte).clone();
  uint8_t* const bytes = rest.mutable_data_ptr<uint8_t>();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t block = 0; block < kBlocks; ++block) {
      const int64_t tile = row / 128 * 2 + block / 4, offset = row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
      uint8_t& code = bytes[tile * 512 + offset];
      EXPECT_EQ(std::ldexp(1.0F, code - 127), operand.decode[row][block].item<float>());
      code = 0;
    }
  }
  EXPECT_EQ(rest.count_nonzero().item<int64_t>(), 0);
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
    EXPECT_TRUE(operand.transposed().values().equal(values.t()));
    EXPECT_TRUE(operand.transposed().codes.is_contiguous());
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

TEST(ScaledProduct, GroupsAreMultipliedOnSm90) {
  for (const int capability : {0, 89, 90, 100, 120}) {
    const bool takes = capability == 0 || capability == 90;
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
  EXPECT_NE(error.find("l multiplies matrices with 40 rows"), std::string::npos) << error;
}

TEST(ScaledProduct, RecipesNeedTheirArchitectures) {
  using config::Recipe;
  const auto refused = [](Recipe recipe, int capability) {
    return !catch_error([&] { nn::check_code_product(recipe, capability); }).empty();
  };
  for (const int capability : {0, 80, 86, 89, 90, 100, 103, 120}) {
    const bool tensor = capability == 0 || capability >= 89, block = capability == 0 || capability == 90,
               mx = capability == 0 || capability == 100 || capability == 103;
    EXPECT_EQ(refused(Recipe::delayed, capability), !tensor) << capability;
    EXPECT_EQ(refused(Recipe::tensorwise, capability), !tensor) << capability;
    EXPECT_EQ(refused(Recipe::blockwise, capability), !block) << capability;
    EXPECT_EQ(refused(Recipe::mxfp8, capability), !mx) << capability;
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
