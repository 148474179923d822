// Every code of the small formats, against their definitions written in another way.
#include "files/small_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "files/dtype.h"

namespace metroplex::files::small_float_test {
namespace {

// The values of non-negative codes ascend in steps: 2^-9 for the first 16 codes, and twice the step after each
// further 8.
TEST(SmallFloat, E4m3HasAllCodes) {
  double value = 0, step = 0x1p-9;
  for (int code = 0; code < 127; ++code) {
    EXPECT_EQ(e4m3_value(static_cast<uint8_t>(code)), value) << code;
    EXPECT_EQ(e4m3_value(static_cast<uint8_t>(code + 128)), -value) << code;
    EXPECT_TRUE(std::signbit(e4m3_value(static_cast<uint8_t>(code + 128)))) << code;
    if (code >= 16 && code % 8 == 0) step *= 2;
    value += step;
  }
  EXPECT_EQ(e4m3_value(126), 448);
  EXPECT_TRUE(std::isnan(e4m3_value(127)) && std::isnan(e4m3_value(255)));
}

TEST(SmallFloat, E8m0HasAllCodes) {
  double value = 0x1p-127;
  for (int code = 0; code < 255; ++code, value *= 2) EXPECT_EQ(e8m0_value(static_cast<uint8_t>(code)), value) << code;
  EXPECT_TRUE(std::isnan(e8m0_value(255)));
}

TEST(SmallFloat, E2m1HasAllCodes) {
  const std::vector<double> values{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_value(code), values[static_cast<size_t>(code)]) << code;
    EXPECT_EQ(e2m1_value(code + 8), -values[static_cast<size_t>(code)]) << code;
    EXPECT_TRUE(std::signbit(e2m1_value(code + 8))) << code;
  }
}

// Between two neighbors, the nearer one; at equal distances, the even code.
template <class Code, class Value>
void expect_nearest(const Code& code_of, const Value& value_of, int last) {
  for (int code = 0; code < last; ++code) {
    const double low = value_of(code), high = value_of(code + 1), middle = (low + high) / 2;
    EXPECT_EQ(code_of(low), code);
    EXPECT_EQ(code_of(std::nextafter(middle, low)), code) << low;
    EXPECT_EQ(code_of(middle), code % 2 == 0 ? code : code + 1) << low;
    EXPECT_EQ(code_of(std::nextafter(middle, high)), code + 1) << low;
    EXPECT_EQ(code_of(-high), code + 1 + (last + 1)) << high;
  }
  EXPECT_EQ(code_of(1e30), last);
  EXPECT_EQ(code_of(-0.0), last + 1);
}

TEST(SmallFloat, NearestCodeTiesToEven) {
  expect_nearest([](double value) { return e2m1_code(value); }, [](int code) { return e2m1_value(code); }, 7);
  const auto e4m3 = [](double value) {
    const int code = e4m3_code(value);
    return code < 0x80 ? code : code - 1;  // leaves out NaN
  };
  expect_nearest(
      e4m3, [](int code) { return e4m3_value(static_cast<uint8_t>(code)); }, 126);
  EXPECT_EQ(e4m3_code(std::nan("")), 0x7f);
  EXPECT_EQ(e4m3_code(HUGE_VAL), 0x7e);
}

// Two F4 elements share a byte; the even one is in the low half.
TEST(SmallFloat, ElementsOfFiles) {
  const std::byte bytes[] = {std::byte{0x7f}, std::byte{0x38}, std::byte{0x80}};
  EXPECT_EQ(element_as_double(Dtype::kF8E4M3, bytes, 1), 1.0);
  EXPECT_EQ(element_as_double(Dtype::kF8E8M0, bytes, 2), 2.0);
  EXPECT_EQ(element_as_double(Dtype::kF4, bytes, 0), -6.0);
  EXPECT_EQ(element_as_double(Dtype::kF4, bytes, 1), 6.0);
  EXPECT_EQ(element_as_double(Dtype::kF4, bytes, 2), -0.0);
  EXPECT_EQ(element_as_double(Dtype::kF4, bytes, 3), 1.5);
}

}  // namespace
}  // namespace metroplex::files::small_float_test
