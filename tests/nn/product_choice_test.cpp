#include <gtest/gtest.h>

#include "nn/matmul.h"
#include "nn/tools.h"
#include "nn/with_products.h"

namespace metroplex::test::product_choice_test {
namespace {

TEST(ProductChoice, FollowsVendorAndInstructionSet) {
  for (const bool intel : {false, true}) {
    for (const bool avx512 : {false, true}) {
      for (const bool bf16 : {false, true}) {
        const nn::ProductChoice choice = nn::choose_products({intel, avx512, bf16});
        EXPECT_EQ(choice.onednn_floats, !intel && avx512);
        EXPECT_EQ(choice.mkl_bf16_sums, intel && bf16);
        EXPECT_EQ(choice.own_bf16_sums, !intel && bf16);
      }
    }
  }
}

TEST(ProductChoice, IsTheSameEveryTime) {
  const nn::ProductChoice one = nn::choose_products(nn::this_processor()),
                          two = nn::choose_products(nn::this_processor());
  EXPECT_EQ(one.onednn_floats, two.onednn_floats);
  EXPECT_EQ(one.mkl_bf16_sums, two.mkl_bf16_sums);
  EXPECT_EQ(one.own_bf16_sums, two.own_bf16_sums);
}

TEST(ProductChoice, LargeFloatProductsAreRightByEither) {
  const int64_t rows = 130, in = 96, out = 140;  // above the threshold
  const at::Tensor x = sample({rows, in}, 1, at::kFloat), w = sample({out, in}, 2, at::kFloat),
                   dy = sample({rows, out}, 3, at::kFloat);
  const at::Tensor xd = x.to(at::kDouble), wd = w.to(at::kDouble), dyd = dy.to(at::kDouble);
  const double tolerance = 1e-5;  // 140 terms of size 1 in fp32
  for (const bool onednn : {false, true}) {
    const WithProducts by({.onednn_floats = onednn, .mkl_bf16_sums = false});
    EXPECT_LT(relative_difference(nn::linear_product({}, x, w.t()), xd.mm(wd.t())), tolerance);
    EXPECT_LT(relative_difference(nn::linear_product({}, dy, w), dyd.mm(wd)), tolerance);
    at::Tensor sum = at::ones({out, in});
    nn::put_linear_weight_gradient({}, sum, dy, x, true);
    nn::put_linear_weight_gradient({}, sum, dy, x, true);
    EXPECT_LT(relative_difference(sum, 1 + 2 * dyd.t().mm(xd)), tolerance);
  }
}

// A product rounded to bf16 is off by at most 2^-8 relative, 4e-3 (and the sum with 1 here by up to twice that); sums
// of 70 exact products in fp32 by 1e-6.
TEST(ProductChoice, SumsOfBf16ProductsAreRoundedOnlyWhereTheCpuHasNoOthers) {
  const nn::ProductChoice& choice = nn::product_choice();
  const double own = choice.mkl_bf16_sums || choice.own_bf16_sums ? 1e-5 : 1e-2;
  for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{{70, 33, 41}, {1, 5, 1}, {0, 3, 4}}) {
    const at::Tensor x = sample({rows, in}, 1, at::kBFloat16), dy = sample({rows, out}, 2, at::kBFloat16);
    const at::Tensor right = 1 + dy.to(at::kDouble).t().mm(x.to(at::kDouble));
    at::Tensor sum = at::ones({out, in});
    nn::put_linear_weight_gradient({}, sum, dy, x, true);
    EXPECT_LT(relative_difference(sum, right), own);
    // Rows of a wider tensor, and columns.
    at::Tensor strided = at::ones({out, in});
    nn::put_linear_weight_gradient({}, strided, at::cat({dy, dy}, 1).narrow(1, 0, out), x.t().contiguous().t(), true);
    EXPECT_TRUE(at::equal(strided, sum));
    const WithProducts rounding({});
    at::Tensor rounded = at::ones({out, in});
    nn::put_linear_weight_gradient({}, rounded, dy, x, true);
    EXPECT_LT(relative_difference(rounded, right), 1e-2);
    const WithProducts tiles({.own_bf16_sums = true});
    at::Tensor by_tiles = at::ones({out, in});
    nn::put_linear_weight_gradient({}, by_tiles, dy, x, true);
    EXPECT_LT(relative_difference(by_tiles, right), 1e-5);
  }
}

// With every library, and with empty matmuls, the whole gradient is written, even over NaN, with the bits of a sum
// that starts at 0. The last two sizes exceed one chunk of a rounded product (8 MiB), and use oneDNN. A product
// rounded to bf16 is off by at most 2^-8 relative, 4e-3; sums of 130 terms are 1e-5 off in fp32.
TEST(ProductChoice, AGradientThatIsNotAddedToIsWritten) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::array<int64_t, 3>> sizes{
      {70, 33, 41}, {1, 5, 1}, {0, 3, 4}, {2, 2, 2100000}, {130, 96, 140}};
  for (const nn::ProductChoice& choice :
       {nn::product_choice(), nn::ProductChoice{}, nn::ProductChoice{.own_bf16_sums = true}}) {
    const WithProducts with(choice);
    for (const auto& [rows, in, out] : sizes) {
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor x = sample({rows, in}, 1, type), dy = sample({rows, out}, 2, type);
        const at::TensorOptions sums = at::TensorOptions().dtype(type == at::kDouble ? at::kDouble : at::kFloat);
        at::Tensor written = at::full({out, in}, nan, sums), added = at::zeros({out, in}, sums);
        nn::put_linear_weight_gradient({}, written, dy, x, false);
        nn::put_linear_weight_gradient({}, added, dy, x, true);
        SCOPED_TRACE(base::concat(rows, " x ", in, " x ", out, " ", c10::toString(type)));
        EXPECT_TRUE(at::equal(written, added));
        const at::Tensor right = dy.to(at::kDouble).t().mm(x.to(at::kDouble));
        const bool half = type == at::kBFloat16 || type == at::kHalf;
        EXPECT_LT(relative_difference(written, right), half ? 4e-3 : 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace metroplex::test::product_choice_test
