// Rows as bytes: values against a reference in float64, and the formats of forward and backward.
#include "moe/row_codes.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "nn/tools.h"

namespace metroplex::moe::row_codes_test {
namespace {

using config::RowDtype;

constexpr int64_t kRows = 5, kWidth = 96, kBlock = 32;

// Rounds a value to 4 significant bits, in steps of at least 2^-9, as E4M3.
double round_e4m3(double x) {
  if (x == 0) return 0;
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), -6) - 3);
  return std::min(std::nearbyint(std::abs(x) / step) * step, 448.0) * (x < 0 ? -1 : 1);
}

// The largest magnitude of a block times the largest possible power of two is at most 448.
at::Tensor round_blocks(const at::Tensor& x) {
  at::Tensor out = x.to(at::kDouble).contiguous().clone();
  double* const values = out.mutable_data_ptr<double>();
  for (int64_t begin = 0; begin < out.numel(); begin += kBlock) {
    double most = 0;
    for (int64_t i = begin; i < begin + kBlock; ++i) most = std::max(most, std::abs(values[i]));
    const double factor = most == 0 ? 1 : std::ldexp(1.0, std::ilogb(448 / most));
    for (int64_t i = begin; i < begin + kBlock; ++i) values[i] = round_e4m3(values[i] * factor) / factor;
  }
  return out;
}

at::Tensor make_rows(at::ScalarType type) {
  const at::Tensor sizes = at::pow(2.0, at::arange(kWidth, at::kDouble).div(kBlock, "floor").mul(5).sub(7));
  at::Tensor x = test::sample({kRows, kWidth}, 1, at::kDouble) * sizes;
  x.select(0, 1).zero_();
  return x.to(type);
}

at::Tensor through_bytes(const at::Tensor& x) {
  const device::Target target;
  const at::Tensor bytes = encode_rows(target, RowDtype::mxfp8, x);
  EXPECT_EQ(bytes.sizes(), (std::vector<int64_t>{x.size(0), x.size(1) / kBlock * (kBlock + 1)}));
  EXPECT_EQ(bytes.scalar_type(), at::kByte);
  return decode_rows(target, RowDtype::mxfp8, bytes, x.scalar_type());
}

// Values have 4 significant bits, so all types represent them exactly.
TEST(RowCodes, AreMxfp8) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = make_rows(type), got = through_bytes(x);
    EXPECT_EQ(got.scalar_type(), type);
    EXPECT_TRUE(at::equal(got.to(at::kDouble), round_blocks(x))) << type;
    EXPECT_TRUE(at::equal(through_bytes(got), got)) << type;
  }
}

TEST(RowCodes, HandleExtremeMagnitudes) {
  at::Tensor x = at::ones({1, 2 * kBlock}, at::kDouble);
  x[0][0] = std::numeric_limits<double>::infinity();
  x[0][1] = std::numeric_limits<double>::quiet_NaN();
  x.narrow(1, kBlock, kBlock).fill_(1e-300);  // below the smallest scale
  const at::Tensor got = through_bytes(x);
  EXPECT_TRUE(std::isnan(got[0][0].item<double>()) && std::isnan(got[0][1].item<double>()));
  EXPECT_TRUE(got.narrow(1, 2, kBlock - 2).eq(1).all().item<bool>());
  EXPECT_TRUE(got.narrow(1, kBlock, kBlock).eq(0).all().item<bool>());
  x.fill_(1e300);  // above the largest scale
  EXPECT_TRUE(through_bytes(x).eq(448 * 0x1p127).all().item<bool>());
}

TEST(RowCodes, FormatsApplyToOneDirection) {
  const at::Tensor x = make_rows(at::kDouble), dy = test::sample({kRows, kWidth}, 2, at::kDouble);
  for (const RowDtype forward : {RowDtype::params, RowDtype::mxfp8}) {
    for (const RowDtype backward : {RowDtype::params, RowDtype::mxfp8}) {
      const at::Tensor leaf = x.clone().requires_grad_(), y = round_rows({{}, forward, backward}, leaf);
      y.backward(dy);
      EXPECT_TRUE(at::equal(y.detach(), forward == RowDtype::params ? x : round_blocks(x)));
      EXPECT_TRUE(at::equal(leaf.grad(), backward == RowDtype::params ? dy : round_blocks(dy)));
    }
  }
}

}  // namespace
}  // namespace metroplex::moe::row_codes_test
