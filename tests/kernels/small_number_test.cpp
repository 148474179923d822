// Rounding to 8-bit formats against libtorch's float8 types, and blocks with a common factor against a plain
// version.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/round_blocks.h"

namespace metroplex::kernels::small_number_test {
namespace {

float to_float(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t to_bits(float x) { return std::bit_cast<uint32_t>(x); }

std::vector<float> all_bf16() {
  std::vector<float> all;
  for (uint32_t bits = 0; bits < 65536; ++bits) all.push_back(to_float(bits << 16));
  return all;
}

// 2^22 of the 2^32 bit patterns, evenly with an odd step, so that all exponents and low bits occur.
std::vector<float> sampled_floats() {
  std::vector<float> all;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 1023)
    all.push_back(to_float(static_cast<uint32_t>(bits)));
  return all;
}

// libtorch does not saturate: larger magnitudes become NaN or infinity there.
void expect_torch_casts(const std::vector<float>& values, SmallNumber number, at::ScalarType type) {
  const SmallForm form = small_form(number);
  const at::Tensor given = at::tensor(values).clamp(-form.largest, form.largest);
  const at::Tensor want = given.to(type).to(at::kFloat);
  const float* const expected = want.const_data_ptr<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    const float got = round_small(values[i], form);
    if (!std::isfinite(values[i])) {
      ASSERT_TRUE(std::isnan(got)) << values[i];
      continue;
    }
    ASSERT_EQ(to_bits(got), to_bits(expected[i])) << values[i];
    ASSERT_EQ(round_small(static_cast<double>(values[i]), form), static_cast<double>(got)) << values[i];
  }
}

TEST(SmallNumber, E4m3IsTorchsCast) {
  expect_torch_casts(all_bf16(), SmallNumber::e4m3, at::kFloat8_e4m3fn);
  expect_torch_casts(sampled_floats(), SmallNumber::e4m3, at::kFloat8_e4m3fn);
}

TEST(SmallNumber, E5m2IsTorchsCast) {
  expect_torch_casts(all_bf16(), SmallNumber::e5m2, at::kFloat8_e5m2);
  expect_torch_casts(sampled_floats(), SmallNumber::e5m2, at::kFloat8_e5m2);
}

// A double next to a tie of e4m3 is not first rounded to float, which would make it the tie.
TEST(SmallNumber, DoublesAreRoundedOnce) {
  const double tie = 1.0625;  // between 1 and 1.125; 1 is even
  EXPECT_EQ(round_small(tie, small_form(SmallNumber::e4m3)), 1.0);
  EXPECT_EQ(round_small(tie + 0x1p-50, small_form(SmallNumber::e4m3)), 1.125);
}

struct Case {
  RoundShape shape;
  std::vector<int64_t> counts;  // empty: equal groups
};

// The same by definition: for every value, the block that contains it, its factor by frexp, the nearest value
// by division.
double nearest(double x, SmallNumber number) {
  const bool e4m3 = number == SmallNumber::e4m3;
  const double magnitude = std::min(std::fabs(x), e4m3 ? 448.0 : 57344.0);
  const int exponent = std::max(std::ilogb(std::max(magnitude, 0x1p-100)), e4m3 ? -6 : -14);
  const double unit = std::ldexp(1.0, exponent - (e4m3 ? 3 : 2));
  return std::copysign(std::nearbyint(magnitude / unit) * unit, x);
}

double largest_value(SmallNumber number) { return number == SmallNumber::e4m3 ? 448 : 57344; }

double plain_value(double x, double block, const RoundShape& shape) {
  const double largest = largest_value(shape.number);
  if (block == 0) return x;
  if (shape.factor == BlockFactor::fp32)
    return nearest(x * (largest / block), shape.number) * (1 / (largest / block));
  int exponent = 0;
  const double fraction = std::frexp(largest / block, &exponent);
  EXPECT_GE(fraction, 0.5);
  return std::ldexp(nearest(std::ldexp(x, exponent - 1), shape.number), 1 - exponent);
}

std::vector<double> plain_blocks(const std::vector<double>& x, const Case& given) {
  const RoundShape& shape = given.shape;
  std::vector<double> out = x;
  int64_t begin = 0;
  for (int64_t group = 0; group < shape.groups; ++group) {
    const int64_t count = given.counts.empty() ? shape.rows / shape.groups : given.counts[static_cast<size_t>(group)];
    const int64_t end = begin + count;
    const auto largest = [&](int64_t first, int64_t last, int64_t left, int64_t right) {
      double most = 0;
      for (int64_t row = first; row < last; ++row)
        for (int64_t column = left; column < right; ++column)
          most = std::max(most, std::fabs(x[static_cast<size_t>(row * shape.columns + column)]));
      return most;
    };
    const int64_t rows = shape.block_rows > 0 ? shape.block_rows : std::max<int64_t>(1, count);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t column = 0; column < shape.columns; ++column) {
        const int64_t first = begin + (row - begin) / rows * rows,
                      left = column / shape.column_step() * shape.column_step();
        const double block =
            largest(first, std::min(end, first + rows), left, std::min(shape.columns, left + shape.column_step()));
        const auto i = static_cast<size_t>(row * shape.columns + column);
        out[i] = plain_value(x[i], block, shape);
      }
    }
    begin = end;
  }
  return out;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::pair<int64_t, int64_t> blocks[] = {{0, 0}, {1, 16}, {16, 1}, {1, 32}, {32, 1}, {16, 16}, {128, 128}};
  for (const auto& [rows, columns] : blocks) {
    for (const SmallNumber number : {SmallNumber::e4m3, SmallNumber::e5m2}) {
      for (const BlockFactor factor : {BlockFactor::fp32, BlockFactor::power_of_two}) {
        all.push_back({{150, 45, 1, rows, columns, number, factor}, {}});
        all.push_back({{150, 48, 3, rows, columns, number, factor}, {}});
        all.push_back({{90, 33, 4, rows, columns, number, factor}, {17, 0, 40, 20}});  // 13 rows of no group
      }
    }
  }
  return all;
}

std::vector<double> random_values(size_t n) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  std::vector<double> x(n);
  for (size_t i = 0; i < n; ++i)
    x[i] = i % 29 == 0 ? 0 : normal(random) * std::pow(2.0, static_cast<double>(i % 13) - 6);
  return x;
}

TEST(RoundBlocks, EqualThePlainVersionInDouble) {
  for (const Case& given : cases()) {
    const std::vector<double> x = random_values(static_cast<size_t>(given.shape.rows * given.shape.columns));
    std::vector<double> out(x.size(), -7), magnitudes(static_cast<size_t>(given.shape.groups), -1);
    const int64_t* const counts = given.counts.empty() ? nullptr : given.counts.data();
    largest_magnitudes(magnitudes.data(), x.data(), counts, given.shape);
    round_blocks(out.data(), x.data(), magnitudes.data(), counts, given.shape);
    const std::vector<double> want = plain_blocks(x, given);
    int64_t rows = given.shape.rows;
    if (counts != nullptr) rows = 17 + 40 + 20;
    for (size_t i = 0; i < out.size(); ++i) {
      const bool counted = static_cast<int64_t>(i) < rows * given.shape.columns;
      ASSERT_EQ(out[i], counted ? want[i] : -7)
          << i << " of blocks " << given.shape.block_rows << " x " << given.shape.block_columns << " "
          << static_cast<int>(given.shape.number) << static_cast<int>(given.shape.factor) << " in "
          << given.shape.groups;
    }
  }
}

// Every type of input gives the values that its exact float values give.
template <class T>
void expect_type(const Case& given) {
  const std::vector<double> values = random_values(static_cast<size_t>(given.shape.rows * given.shape.columns));
  std::vector<T> x;
  std::vector<float> exact;
  for (const double value : values) {
    x.push_back(store<T>(static_cast<float>(value)));
    exact.push_back(load(x.back()));
  }
  const auto run = [&](const auto& from) {
    std::vector<float> out(exact.size()), magnitudes(static_cast<size_t>(given.shape.groups));
    const int64_t* const counts = given.counts.empty() ? nullptr : given.counts.data();
    largest_magnitudes(magnitudes.data(), from.data(), counts, given.shape);
    round_blocks(out.data(), from.data(), magnitudes.data(), counts, given.shape);
    return out;
  };
  ASSERT_EQ(run(x), run(exact));
}

TEST(RoundBlocks, HalfTypesAreReadExactly) {
  for (const Case& given : cases()) {
    expect_type<Bf16>(given);
    expect_type<F16>(given);
  }
}

// Zeros, magnitudes whose factor would be infinite, and values without a number.
TEST(RoundBlocks, ExtremesStayNumbersOrNan) {
  constexpr float kTiny = 1e-42F, kHuge = 3e38F, kInfinity = std::numeric_limits<float>::infinity();
  for (const BlockFactor factor : {BlockFactor::fp32, BlockFactor::power_of_two}) {
    const RoundShape shape{3, 16, 3, 1, 16, SmallNumber::e4m3, factor};
    std::vector<float> x(48, 0), out(48, -1), magnitudes(3);
    for (size_t i = 0; i < 16; ++i) x[16 + i] = kTiny, x[32 + i] = i == 3 ? kHuge : -kHuge / 2;
    largest_magnitudes(magnitudes.data(), x.data(), nullptr, shape);
    round_blocks(out.data(), x.data(), magnitudes.data(), nullptr, shape);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(out[i], 0);
      EXPECT_TRUE(std::isfinite(out[16 + i])) << out[16 + i];
      EXPECT_NEAR(out[32 + i] / kHuge, x[32 + i] / kHuge, 0.0625);  // 2^-4 of the value
    }
    x[5] = kInfinity, x[20] = std::nanf("");
    largest_magnitudes(magnitudes.data(), x.data(), nullptr, shape);
    round_blocks(out.data(), x.data(), magnitudes.data(), nullptr, shape);
    EXPECT_TRUE(std::isnan(out[5]));
    EXPECT_TRUE(std::isnan(out[20]));
    EXPECT_TRUE(std::isfinite(out[40]));
  }
}

}  // namespace
}  // namespace metroplex::kernels::small_number_test
