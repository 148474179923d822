// The operands of libtorch's products of codes with blocks: the layouts of their factors against the layouts'
// definitions (checks of at::_scaled_mm_v2 in libtorch 2.11; cuBLAS, "1D block scaling factors layout"). The products
// need a GPU.
#include "nn/scaled_product.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

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
