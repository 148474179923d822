// Conversion between number formats: every 16-bit value, every tie, and the neighbors of both.
#include "files/convert_dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "support/error_of.h"

namespace metroplex::files::convert_dtype_test {
namespace {

uint16_t as_half(Dtype from, Dtype to, double value) {
  std::byte in[8];
  if (const auto narrow = static_cast<float>(value); from == Dtype::kF32) std::memcpy(in, &narrow, 4);
  else std::memcpy(in, &value, 8);
  uint16_t bits = 0;
  convert_elements(from, in, to, reinterpret_cast<std::byte*>(&bits), 1);
  return bits;
}

double to_double(Dtype dtype, uint16_t bits) {
  return element_as_double(dtype, reinterpret_cast<const std::byte*>(&bits), 0);
}

// Positive finite values of a 16-bit type are ordered as their bits: rounding takes the nearer of two neighbors, and
// the even one for a tie.
TEST(ConvertDtype, EveryValueOfSixteenBitsItsNeighbourhoodAndItsTies) {
  for (const Dtype half : {Dtype::kBF16, Dtype::kF16}) {
    const uint16_t infinite = half == Dtype::kBF16 ? 0x7f80 : 0x7c00;
    for (uint16_t bits = 0; bits < infinite; ++bits) {
      const double x = to_double(half, bits);
      const auto next = static_cast<uint16_t>(bits + 1);
      // The neighbor beyond the largest value would be equally far.
      const double above =
          next == infinite ? 2 * x - to_double(half, static_cast<uint16_t>(bits - 1)) : to_double(half, next);
      const double middle = (x + above) / 2;
      const auto even = static_cast<uint16_t>((bits & 1) == 0 ? bits : next);
      for (const Dtype from : {Dtype::kF32, Dtype::kF64}) {
        const auto there = [&](double v) {
          return from == Dtype::kF32 ? static_cast<double>(static_cast<float>(v)) : v;
        };
        const double below_middle =
            from == Dtype::kF32 ? std::nextafter(static_cast<float>(middle), 0.0F) : std::nextafter(middle, 0.0);
        const double above_middle = from == Dtype::kF32 ? std::nextafter(static_cast<float>(middle), INFINITY)
                                                        : std::nextafter(middle, double{INFINITY});
        ASSERT_EQ(there(middle), middle) << "a tie is a float";
        for (const int sign : {1, -1}) {
          const auto with_sign = [&](uint16_t b) { return static_cast<uint16_t>(sign < 0 ? b | 0x8000 : b); };
          ASSERT_EQ(as_half(from, half, std::copysign(x, sign)), with_sign(bits));
          ASSERT_EQ(as_half(from, half, sign * middle), with_sign(even)) << bits;
          ASSERT_EQ(as_half(from, half, sign * below_middle), with_sign(bits)) << bits;
          ASSERT_EQ(as_half(from, half, sign * above_middle), with_sign(next)) << bits;
        }
      }
    }
    for (const Dtype from : {Dtype::kF32, Dtype::kF64}) {
      EXPECT_EQ(as_half(from, half, INFINITY), infinite);
      EXPECT_EQ(as_half(from, half, -1e38 * 1e200), infinite | 0x8000);
      EXPECT_TRUE(std::isnan(to_double(half, as_half(from, half, NAN))));
    }
  }
}

TEST(ConvertDtype, WiderTypesHoldWhatNarrowOnesDid) {
  for (const Dtype half : {Dtype::kBF16, Dtype::kF16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto narrow = static_cast<uint16_t>(bits);
      float single = 0;
      double twice = 0;
      uint16_t back = 0;
      const auto* const in = reinterpret_cast<const std::byte*>(&narrow);
      convert_elements(half, in, Dtype::kF32, reinterpret_cast<std::byte*>(&single), 1);
      convert_elements(half, in, Dtype::kF64, reinterpret_cast<std::byte*>(&twice), 1);
      convert_elements(Dtype::kF32, reinterpret_cast<const std::byte*>(&single), half,
                       reinterpret_cast<std::byte*>(&back), 1);
      if (std::isnan(to_double(half, narrow))) {
        ASSERT_TRUE(std::isnan(single) && std::isnan(twice) && std::isnan(to_double(half, back)));
      } else {
        ASSERT_EQ(back, narrow);
        ASSERT_EQ(twice, to_double(half, narrow));
      }
    }
  }
}

TEST(ConvertDtype, IntegersAreCopiedAndNotConverted) {
  const int64_t values[2] = {-3, int64_t{1} << 60};
  int64_t copied[2] = {};
  const auto* const in = reinterpret_cast<const std::byte*>(values);
  convert_elements(Dtype::kI64, in, Dtype::kI64, reinterpret_cast<std::byte*>(copied), 2);
  EXPECT_EQ(copied[0], values[0]);
  EXPECT_EQ(copied[1], values[1]);
  const std::string error = test::catch_error(
      [&] { convert_elements(Dtype::kI64, in, Dtype::kF32, reinterpret_cast<std::byte*>(copied), 1); });
  EXPECT_NE(error.find("I64 cannot be written as F32"), std::string::npos) << error;
}

}  // namespace
}  // namespace metroplex::files::convert_dtype_test
