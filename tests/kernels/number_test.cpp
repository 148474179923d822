// Conversions of single numbers against c10's, and the storage of fp32 arrays in fewer bits.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/block8.h"

namespace metroplex::kernels::number_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint32_t to_bits(float x) { return std::bit_cast<uint32_t>(x); }
float to_float(uint32_t bits) { return std::bit_cast<float>(bits); }

// Random bit patterns and, for each power of two, its neighbors and the ties between numbers of fewer bits.
std::vector<float> patterns(int count) {
  std::mt19937 random(7);
  std::vector<float> all;
  for (int i = 0; i < count; ++i) all.push_back(to_float(random()));
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const uint32_t mantissa : {0U, 1U, 0x7FFFFFU, 0x8000U, 0x18000U, 0x7FFFU, 0x8001U, 0x1000U, 0x3000U, 0xFFFU,
                                    0x1001U, 0x7F8000U, 0x7FF000U, 0x7FEFFFU, 0x80000U, 0x180000U, 0x400000U}) {
      for (const uint32_t sign : {0U, kFloatSign}) all.push_back(to_float(sign | exponent << 23 | mantissa));
    }
  }
  return all;
}

TEST(Number, SixteenBitsToFloatIsWhatC10Says) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float bf16 = c10::BFloat16(bits, c10::BFloat16::from_bits()), f16 = c10::Half(bits, c10::Half::from_bits());
    ASSERT_EQ(to_bits(bf16_to_float(bits)), to_bits(bf16)) << i;
    const float ours = f16_to_float(bits);
    ASSERT_TRUE(to_bits(ours) == to_bits(f16) || (std::isnan(ours) && std::isnan(f16))) << i;
  }
}

TEST(Number, FloatToSixteenBitsIsWhatC10Says) {
  for (const float x : patterns(2000000)) {
    ASSERT_EQ(float_to_bf16(x), c10::BFloat16(x).x) << to_bits(x);
    const uint16_t half = float_to_f16(x), expected = c10::Half(x).x;
    ASSERT_TRUE(half == expected || (std::isnan(x) && std::isnan(f16_to_float(half)))) << to_bits(x);
  }
}

TEST(Number, ANoisyBf16IsOneOfTheTwoNeighboursAndRightOnAverage) {
  for (const float x : {1.001F, -3.14159F, 1e-30F, 65535.9F, 1e-41F}) {
    double sum = 0;
    for (uint32_t noise = 0; noise < 65536; ++noise) sum += bf16_to_float(float_to_bf16(x, noise));
    EXPECT_NEAR(sum / 65536, x, std::abs(x) * 1e-12);  // every noise value once: exact except for the rounding of the
                                                       // sum
  }
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float x = bf16_to_float(bits);
    ASSERT_TRUE(std::isnan(x) || float_to_bf16(x, 0xFFFF) == bits) << i;
  }
}

TEST(Number, PositionNoiseIsEvenlySpreadAndDiffersByKey) {
  constexpr int kCount = 1 << 20;
  const uint32_t key = mixed_key(1), other = mixed_key(2);
  double mean = 0, product = 0, other_product = 0, bit_flips = 0;
  for (int i = 0; i < kCount; ++i) {
    const uint32_t word = position_noise(key, i);
    const double low = (word & 0xFFFF) / 65536.0 - 0.5, high = (word >> 16) / 65536.0 - 0.5;
    mean += low + high;
    product += low * high;
    other_product += low * ((position_noise(other, i) & 0xFFFF) / 65536.0 - 0.5);
    bit_flips += std::popcount(word ^ position_noise(key, i + 1));
  }
  // Five standard deviations: of a uniform number 1/sqrt(12), of a product of two 1/12, of 32 fair bits sqrt(8).
  const double root = std::sqrt(static_cast<double>(kCount));
  EXPECT_LT(std::abs(mean), 5 * root * std::sqrt(2.0 / 12));
  EXPECT_LT(std::abs(product), 5 * root / 12);
  EXPECT_LT(std::abs(other_product), 5 * root / 12);
  EXPECT_NEAR(bit_flips / kCount, 16, 5 * std::sqrt(8.0) / root);
}

TEST(SplitFloat, Bf16AndRemainderAreTheFp32ValueToTheLastBit) {
  const std::vector<float> all = patterns(2000000);
  const auto n = static_cast<int64_t>(all.size());
  std::vector<uint16_t> params(all.size()), remainders(all.size());
  std::vector<float> back(all.size());
  split_floats(all.data(), n, params.data(), remainders.data());
  join_floats(params.data(), remainders.data(), n, back.data());
  for (size_t i = 0; i < all.size(); ++i) {
    const float param = bf16_to_float(params[i]);
    if (std::isnan(all[i])) {
      ASSERT_TRUE(std::isnan(back[i]) && std::isnan(param)) << to_bits(all[i]);
      continue;
    }
    ASSERT_EQ(to_bits(back[i]), to_bits(all[i]));
    const bool tie = (to_bits(all[i]) & 0xFFFF) == 0x8000;
    if (tie) {
      ASSERT_GT(std::abs(param), std::abs(all[i]));
    } else {
      ASSERT_EQ(params[i], float_to_bf16(all[i])) << to_bits(all[i]);  // the nearest
    }
  }
}

struct Stored {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  bool operator==(const Stored& other) const {
    return codes == other.codes && std::equal(scales.begin(), scales.end(), other.scales.begin(),
                                              [](float a, float b) { return to_bits(a) == to_bits(b); });
  }
};
Stored encoded(const std::vector<float>& values, bool is_signed) {
  const auto n = static_cast<int64_t>(values.size());
  Stored stored{std::vector<uint8_t>(values.size()), std::vector<float>(static_cast<size_t>(block8_scales(n)))};
  block8_encode(values.data(), n, is_signed, stored.codes.data(), stored.scales.data());
  return stored;
}
std::vector<float> decoded(const Stored& stored, bool is_signed) {
  std::vector<float> values(stored.codes.size());
  block8_decode(stored.codes.data(), stored.scales.data(), static_cast<int64_t>(values.size()), is_signed,
                values.data());
  return values;
}

// Blocks of all sizes of numbers: magnitudes over `decades` below 10^top, some zeros.
std::vector<float> spread(int64_t n, double top, double decades, bool is_signed) {
  std::mt19937 random(static_cast<uint32_t>(n + decades));
  std::uniform_real_distribution<double> exponent(top - decades, top);
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) {
    const double sign = is_signed && random() % 2 == 0 ? -1 : 1;
    values.push_back(random() % 16 == 0 ? 0.0F : static_cast<float>(sign * std::pow(10.0, exponent(random))));
  }
  return values;
}

TEST(Block8, WhatWasDecodedIsEncodedToTheSameBits) {
  for (const bool is_signed : {true, false}) {
    for (const int64_t n : {1, 15, 255, 256, 257, 1000, 100003}) {
      for (const double top : {38.5, 1.0, -10.0, -25.0, -29.0, -36.0, -44.0}) {
        for (const double decades : {0.01, 2.0, 12.0, 60.0}) {
          const Stored once = encoded(spread(n, top, decades, is_signed), is_signed);
          const Stored twice = encoded(decoded(once, is_signed), is_signed);
          ASSERT_TRUE(once == twice) << "n " << n << " top " << top << " decades " << decades;
        }
      }
    }
  }
}

TEST(Block8, EveryCodeUnderItsScaleStandsForItself) {
  for (const bool is_signed : {true, false}) {
    for (int code = 0; code < 256; ++code) {
      if (is_signed && code == 0x80) continue;  // the encoder never writes a negative zero
      const uint8_t largest = is_signed ? 0x7F : 0xFF;
      const Stored stored{{static_cast<uint8_t>(code), largest}, {0.25F}};
      EXPECT_TRUE(encoded(decoded(stored, is_signed), is_signed) == stored) << code;
    }
  }
}

TEST(Block8, TheErrorIsASixteenthInReachAndBoundedBelow) {
  for (const bool is_signed : {true, false}) {
    for (const double decades : {1.0, 4.0, 12.0}) {
      const std::vector<float> values = spread(100003, 1.0, decades, is_signed);
      const Stored stored = encoded(values, is_signed);
      const std::vector<float> back = decoded(stored, is_signed);
      for (size_t i = 0; i < values.size(); ++i) {
        const double scale = stored.scales[i / kBlock8], error = std::abs(static_cast<double>(back[i]) - values[i]);
        const double below = is_signed ? 0.57 * std::exp2(-15) : 1.125 * std::exp2(-31);
        ASSERT_LE(error, std::max(std::abs(values[i]) / 16.0, below * scale)) << values[i];
      }
    }
  }
}

TEST(Block8, ZerosStayZerosAndNoPositiveSecondMomentBecomesZero) {
  const std::vector<float> zeros(300, 0.0F);
  const Stored stored = encoded(zeros, true);
  EXPECT_TRUE(stored == (Stored{std::vector<uint8_t>(300), {0.0F, 0.0F}}));
  EXPECT_EQ(decoded(stored, true), zeros);
  std::vector<float> second{1e30F, 0.0F, 1e-10F, 1e-30F, 1e-45F, 0.5F};
  second.resize(256);
  second.push_back(1e-45F);  // a separate block
  second.push_back(0.0F);
  const std::vector<float> back = decoded(encoded(second, false), false);
  for (size_t i = 0; i < second.size(); ++i) EXPECT_EQ(back[i] > 0, second[i] > 0) << i;
  EXPECT_GE(back[4], second[4]);
}

TEST(Block8, ABadNumberMakesItsBlockNanAndNoOther) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), to_float(0xFFFFFFFF)}) {
    std::vector<float> values = spread(768, 0.0, 2.0, true);
    values[300] = bad;
    const Stored stored = encoded(values, true);
    const std::vector<float> back = decoded(stored, true);
    for (size_t i = 0; i < back.size(); ++i) ASSERT_EQ(std::isnan(back[i]), i / 256 == 1) << i;
    EXPECT_TRUE(encoded(back, true) == stored);
  }
}

}  // namespace
}  // namespace metroplex::kernels::number_test
