// Rounding to 8-bit formats against libtorch's float8 types, to e2m1 against the list of its values, and blocks with
// a common factor against a plain version.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/round_blocks.h"
#include "kernels/small_codes.h"

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

// Ties go to the value with an even code.
TEST(SmallNumber, E2m1IsTheNearestValue) {
  constexpr float kValues[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const SmallForm form = small_form(SmallNumber::e2m1);
  for (const std::vector<float>& values : {all_bf16(), sampled_floats()}) {
    for (const float x : values) {
      const float got = round_small(x, form);
      if (!std::isfinite(x)) {
        ASSERT_TRUE(std::isnan(got)) << x;
        continue;
      }
      const double magnitude = std::min(6.0, std::fabs(static_cast<double>(x)));
      size_t nearest = 0;
      for (size_t code = 1; code < 8; ++code) {
        const double before = std::fabs(magnitude - kValues[nearest]), here = std::fabs(magnitude - kValues[code]);
        if (here < before || (here == before && code % 2 == 0)) nearest = code;
      }
      ASSERT_EQ(to_bits(got), to_bits(std::copysign(kValues[nearest], x))) << x;
    }
  }
}

// Values of the format are unchanged. Others go up if the random number is below their distance from the lower value.
TEST(SmallNumber, RandomRoundingHasAnExactMean) {
  constexpr double kAlmostOne = 1 - 0x1p-24;
  for (const SmallNumber number : {SmallNumber::e4m3, SmallNumber::e5m2, SmallNumber::e2m1}) {
    const SmallForm form = small_form(number);
    for (double x = 0; x <= form.largest; x = x * 1.37 + form.largest * 0x1p-22) {
      const double value = round_small(x, form);
      for (const double sign : {1.0, -1.0}) {
        for (const double uniform : {0.0, 0.5, kAlmostOne}) {
          ASSERT_EQ(round_small_randomly(sign * value, form, uniform), sign * value);
          ASSERT_EQ(round_small_randomly(static_cast<float>(sign * value), form, static_cast<float>(uniform)),
                    static_cast<float>(sign * value));
        }
        const double lower = round_small_randomly(sign * x, form, kAlmostOne),
                     upper = round_small_randomly(sign * x, form, 0.0);
        ASSERT_LE(std::fabs(lower), x);
        ASSERT_GE(std::fabs(upper), x);
        if (lower == upper) continue;
        const double share = (sign * x - lower) / (upper - lower);  // exact for the last digits that matter
        ASSERT_EQ(round_small_randomly(sign * x, form, share * (1 - 0x1p-40)), upper) << x;
        ASSERT_EQ(round_small_randomly(sign * x, form, share * (1 + 0x1p-40)), lower) << x;
        // The two are adjacent: no value of the format is between them.
        ASSERT_TRUE(round_small((lower + upper) / 2, form) == lower ||
                    round_small((lower + upper) / 2, form) == upper);
      }
    }
    EXPECT_EQ(round_small_randomly(2.0F * form.largest, form, 0.5F), form.largest);
    EXPECT_TRUE(std::isnan(round_small_randomly(std::numeric_limits<float>::infinity(), form, 0.5F)));
  }
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
  const SmallForm form = small_form(number);
  const double magnitude = std::min(std::fabs(x), static_cast<double>(form.largest));
  const int exponent = std::max(std::ilogb(std::max(magnitude, 0x1p-100)), form.least);
  const double unit = std::ldexp(1.0, exponent - form.fraction);
  return std::copysign(std::nearbyint(magnitude / unit) * unit, x);
}

// `block`, `group`: the largest magnitudes.
double plain_value(double x, double block, double group, const RoundShape& shape) {
  const double largest = small_form(shape.number).largest;
  if (block == 0) return x;
  if (shape.factor == BlockFactor::fp32)
    return nearest(x * (largest / block), shape.number) * (1 / (largest / block));
  if (shape.factor == BlockFactor::e4m3) {
    const double of_group = 448 * largest / group;
    const double decode = nearest(block / largest * of_group, SmallNumber::e4m3) * (1 / of_group);
    return decode == 0 ? std::copysign(0, x) : nearest(x * (1 / decode), shape.number) * decode;
  }
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
    const double of_group = largest(begin, end, 0, shape.columns);
    const int64_t rows = shape.block_rows > 0 ? shape.block_rows : std::max<int64_t>(1, count);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t column = 0; column < shape.columns; ++column) {
        const int64_t first = begin + (row - begin) / rows * rows,
                      left = column / shape.column_step() * shape.column_step();
        const double block =
            largest(first, std::min(end, first + rows), left, std::min(shape.columns, left + shape.column_step()));
        const auto i = static_cast<size_t>(row * shape.columns + column);
        out[i] = plain_value(x[i], block, of_group, shape);
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
    for (const SmallNumber number : {SmallNumber::e4m3, SmallNumber::e5m2, SmallNumber::e2m1}) {
      for (const BlockFactor factor : {BlockFactor::fp32, BlockFactor::power_of_two, BlockFactor::e4m3}) {
        if (rows == 0 && factor == BlockFactor::e4m3) continue;
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
  const auto run = [&]<class Out>(const auto& from, Out) {
    std::vector<Out> out(exact.size());
    std::vector<float> magnitudes(static_cast<size_t>(given.shape.groups));
    const int64_t* const counts = given.counts.empty() ? nullptr : given.counts.data();
    largest_magnitudes(magnitudes.data(), from.data(), counts, given.shape);
    round_blocks(out.data(), from.data(), magnitudes.data(), counts, given.shape);
    std::vector<float> values;
    for (const Out value : out) values.push_back(load(value));
    return values;
  };
  ASSERT_EQ(run(x, float{}), run(exact, float{}));
  if constexpr (std::is_same_v<T, Bf16>) {
    if (given.shape.factor == BlockFactor::power_of_two) { ASSERT_EQ(run(x, Bf16{}), run(exact, float{})); }
  }
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

// A block whose factor is 0 in e4m3: its values are 0.
TEST(RoundBlocks, TinyBlocksOfNvfp4BecomeZero) {
  const RoundShape shape{2, 16, 1, 1, 16, SmallNumber::e2m1, BlockFactor::e4m3};
  std::vector<float> x(32, 1), out(32, -1), magnitude(1);
  for (size_t i = 0; i < 16; ++i) x[16 + i] = 1e-30F;
  largest_magnitudes(magnitude.data(), x.data(), nullptr, shape);
  round_blocks(out.data(), x.data(), magnitude.data(), nullptr, shape);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(out[i], 1, 0x1p-22);  // factor, inverse and product each round by 2^-24
    EXPECT_EQ(out[16 + i], 0);
  }
}

TEST(EncodeValues, CodesAreThoseOfTorch) {
  const std::vector<double> given = random_values(60 * 7);
  const at::Tensor x = at::tensor(given).to(at::kFloat);
  for (const auto& [number, type] :
       {std::pair(SmallNumber::e4m3, at::kFloat8_e4m3fn), {SmallNumber::e5m2, at::kFloat8_e5m2}}) {
    // The largest value that is not clipped: half of the values saturate, or very small ones become subnormal.
    for (const float magnitude : {0.5F, 64.0F, 1e6F, 0.0F}) {
      const RoundShape shape{60, 7, 1, 0, 0, number, BlockFactor::fp32};
      std::vector<uint8_t> codes(x.numel());
      float decode = -1;
      encode_values<float>({codes.data(), &decode}, x.const_data_ptr<float>(), &magnitude, nullptr, shape);
      const float largest = small_form(number).largest, encode = magnitude > 0 ? largest / magnitude : 1;
      EXPECT_EQ(decode, 1 / encode);
      const at::Tensor want = x.mul(encode).clamp(-largest, largest).to(type).view(at::kByte).contiguous();
      for (size_t i = 0; i < codes.size(); ++i) ASSERT_EQ(codes[i], want.const_data_ptr<uint8_t>()[i]) << given[i];
    }
  }
}

// code * factor is the value of round_blocks: blocks of one group, the last ones smaller, and groups with own
// factors.
TEST(EncodeValues, BlocksHaveTheRoundedValues) {
  constexpr int64_t kRows = 20, kColumns = 37;
  const std::vector<double> given = random_values(kRows * kColumns);
  const std::vector<float> x(given.begin(), given.end());
  const std::vector<int64_t> counts = {7, 0, 9};
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{0, 0}, {1, 16}, {16, 1}, {16, 16}}) {
    const bool groups = rows == 0;
    const RoundShape shape{kRows,
                           kColumns,
                           groups ? 3 : 1,
                           rows,
                           columns,
                           SmallNumber::e4m3,
                           groups ? BlockFactor::fp32 : BlockFactor::power_of_two};
    std::vector<float> magnitudes(3), decode(kRows * kColumns), rounded(x.size(), -1);
    std::vector<uint8_t> codes(x.size());
    const int64_t* const own = groups ? counts.data() : nullptr;
    largest_magnitudes(magnitudes.data(), x.data(), own, shape);
    round_blocks(rounded.data(), x.data(), magnitudes.data(), own, shape);
    encode_values<float>({codes.data(), decode.data()}, x.data(), magnitudes.data(), own, shape);
    for (int64_t i = 0; i < (groups ? 16 : kRows) * kColumns; ++i) {
      const int64_t row = i / kColumns, column = i % kColumns;
      const int64_t block = groups ? (row < 7 ? 0 : 2) : row / rows * shape.column_blocks() + column / columns;
      const float value = small_value(codes[static_cast<size_t>(i)], e4m3_code());
      ASSERT_EQ(value * decode[static_cast<size_t>(block)], rounded[static_cast<size_t>(i)]) << row << " " << column;
    }
  }
}

// bf16 represents the numbers of all codes, and the factors are those of the codes, also of a group without rows.
TEST(RoundBlocks, NumbersAreThoseOfCodes) {
  constexpr int64_t kRows = 20, kColumns = 37;
  std::vector<Bf16> x;
  for (const double value : random_values(kRows * kColumns)) x.push_back(store<Bf16>(static_cast<float>(value)));
  const std::vector<int64_t> counts = {7, 0, 9};
  for (const auto& [number, form] :
       {std::pair(SmallNumber::e4m3, e4m3_code()), {SmallNumber::e5m2, code_form(SmallNumber::e5m2)}}) {
    const RoundShape shape{kRows, kColumns, 3, 0, 0, number, BlockFactor::fp32};
    const std::vector<float> magnitudes = {0.3F, 5, 1e6F};  // some saturate, most are subnormal or 0
    std::vector<float> decode(3, -1), factors(3, -2);
    std::vector<uint8_t> codes(x.size());
    std::vector<Bf16> numbers(x.size(), store<Bf16>(-7));
    encode_values<Bf16>({codes.data(), decode.data()}, x.data(), magnitudes.data(), counts.data(), shape);
    round_blocks(numbers.data(), x.data(), magnitudes.data(), counts.data(), shape, {}, factors.data());
    EXPECT_EQ(factors, decode);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(load(numbers[i]), i < 16 * kColumns ? small_value(codes[i], form) : -7) << i;
  }
}

constexpr std::pair<int64_t, int64_t> kNvfp4Blocks[] = {{1, 16}, {16, 1}, {16, 16}};

// The bits of code * (factor * decode) are those of round_blocks, also with random rounding. The last blocks are
// smaller; the row of zeros has blocks whose factor is 0.
TEST(EncodeValues, PairsHaveTheRoundedValues) {
  constexpr int64_t kRows = 21, kColumns = 38;
  const std::vector<double> given = random_values(kRows * kColumns);
  std::vector<float> x(given.begin(), given.end());
  std::fill_n(x.begin() + 5 * kColumns, kColumns, -1e-30F);
  const int64_t counter = 3;
  for (const auto& [rows, columns] : kNvfp4Blocks) {
    for (const bool random : {false, true}) {
      const RoundShape shape{kRows, kColumns, 1, rows, columns, SmallNumber::e2m1, BlockFactor::e4m3};
      RoundingNoise noise;
      if (random) {
        noise.positions.key = 5, noise.positions.width = 50, noise.positions.num_rows = kRows;
        noise.positions.rows = {&counter, 3, 1};
        noise.ranges[0] = {0, 3}, noise.ranges[1] = {10, 20}, noise.num_ranges = 2;
      }
      std::vector<float> rounded(x.size(), -1), magnitude(1), decode(1);
      std::vector<uint8_t> codes(x.size() / 2), factors(x.size());
      largest_magnitudes(magnitude.data(), x.data(), nullptr, shape);
      round_blocks(rounded.data(), x.data(), magnitude.data(), nullptr, shape, noise);
      encode_values<float>({codes.data(), decode.data(), factors.data()}, x.data(), magnitude.data(), nullptr, shape,
                           noise);
      for (int64_t i = 0; i < kRows * kColumns; ++i) {
        const int64_t row = i / kColumns, column = i % kColumns,
                      block = row / rows * shape.column_blocks() + column / columns;
        const uint32_t code = codes[static_cast<size_t>(i / 2)] >> (column % 2 * 4) & 15U;
        const float factor = small_value(factors[static_cast<size_t>(block)], e4m3_code()) * decode[0],
                    value = small_value(code, e2m1_code()) * factor;
        ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(rounded[static_cast<size_t>(i)]))
            << rows << " x " << columns << " " << random << " " << row << " " << column;
      }
    }
  }
}

// E2M1 has no code for them.
TEST(EncodeValues, PairsWithoutANumberHaveNanFactors) {
  for (const float special : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const auto& [rows, columns] : kNvfp4Blocks) {
      const RoundShape shape{32, 32, 1, rows, columns, SmallNumber::e2m1, BlockFactor::e4m3};
      std::vector<float> x(32 * 32, 0.5F), decode(1);
      x[17 * 32 + 3] = special;
      const float magnitude = 0.5F;
      std::vector<uint8_t> codes(x.size() / 2), factors(static_cast<size_t>(32 / rows * shape.column_blocks()));
      encode_values<float>({codes.data(), decode.data(), factors.data()}, x.data(), &magnitude, nullptr, shape);
      for (size_t block = 0; block < factors.size(); ++block) {
        const auto own = static_cast<size_t>(17 / rows * shape.column_blocks() + 3 / columns);
        EXPECT_EQ(std::isnan(small_value(factors[block], e4m3_code())), block == own) << rows << " x " << columns;
      }
    }
  }
}

TEST(EncodeValues, EveryCodeIsItsValues) {
  for (const auto& [number, type] :
       {std::pair(SmallNumber::e4m3, at::kFloat8_e4m3fn), {SmallNumber::e5m2, at::kFloat8_e5m2}}) {
    const at::Tensor values = at::arange(256, at::kInt).to(at::kByte).view(type).to(at::kFloat);
    for (int code = 0; code < 256; ++code) {
      const float value = values.const_data_ptr<float>()[code];
      if (std::isinf(value)) continue;  // e5m2; rounding saturates instead
      const int got = small_code(value, code_form(number));
      ASSERT_EQ(std::isnan(value) ? got & 0x7F : got, std::isnan(value) ? 0x7F : code) << value;
    }
  }
}

// Shards of columns and rows have the random numbers of the unsharded values.
TEST(RoundBlocks, RandomRoundingOfShardsIsThatOfTheWhole) {
  const std::vector<int64_t> counters = {5, 9};  // two samples
  const auto random = [&](int64_t rows, int64_t first_row) {
    RoundingNoise noise;
    noise.positions.width = 24;
    noise.positions.num_rows = rows;
    noise.positions.key = 3;
    noise.positions.rows = {counters.data(), 2, first_row};
    return noise;
  };
  const RoundShape whole{8, 24, 1, 1, 4, SmallNumber::e2m1, BlockFactor::power_of_two};
  const std::vector<double> x = random_values(8 * 24);
  std::vector<double> want(x.size());
  round_blocks(want.data(), x.data(), nullptr, nullptr, whole, random(8, 0));
  // Rows 2 and 3 of both samples, columns 4 to 11 and 16 to 19.
  const std::vector<std::pair<int64_t, int64_t>> ranges = {{4, 8}, {16, 4}};
  std::vector<double> shard, expected;
  for (int64_t row = 4; row < 8; ++row) {
    for (const auto& [first, count] : ranges) {
      for (int64_t column = first; column < first + count; ++column) {
        shard.push_back(x[static_cast<size_t>(row * 24 + column)]);
        expected.push_back(want[static_cast<size_t>(row * 24 + column)]);
      }
    }
  }
  RoundShape own = whole;
  own.rows = 4, own.columns = 12;
  RoundingNoise noise = random(4, 2);
  noise.ranges[0] = {0, 4}, noise.ranges[1] = {8, 16}, noise.num_ranges = 2;
  std::vector<double> out(shard.size());
  round_blocks(out.data(), shard.data(), nullptr, nullptr, own, noise);
  EXPECT_EQ(out, expected);
  noise.num_ranges = 1;
  round_blocks(out.data(), shard.data(), nullptr, nullptr, own, noise);
  EXPECT_NE(out, expected);
}

// The matrix by its definition: entry (i, j) is the sign of the number of common bits of i and j.
TEST(RotateRows, MultipliesByTheSignedMatrix) {
  constexpr int kSigns[] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  const RoundShape shape{50, 7, 2};
  const std::vector<int64_t> counts = {37, 9};  // two blocks and 5 rows; 9 rows; 4 rows of no group
  const std::vector<double> x = random_values(350);
  std::vector<double> out(350, -7);
  rotate_rows(out.data(), x.data(), counts.data(), shape);
  for (int64_t row = 0; row < 50; ++row) {
    for (int64_t column = 0; column < 7; ++column) {
      const auto value = [&](int64_t of_row) { return x[static_cast<size_t>(of_row * 7 + column)]; };
      double want = row < 46 ? value(row) : -7, sizes = 0;
      if (row < 32) {
        want = 0;
        for (int64_t j = 0; j < 16; ++j) {
          const double term = kSigns[j] * value(row / 16 * 16 + j) / 4;
          want += std::popcount(static_cast<uint64_t>(row % 16 & j)) % 2 == 0 ? term : -term;
          sizes += std::fabs(term);
        }
      }
      // Sums of 16 terms in two orders.
      EXPECT_NEAR(out[static_cast<size_t>(row * 7 + column)], want, 2 * 16 * 0x1p-53 * sizes) << row;
    }
  }
}

}  // namespace
}  // namespace metroplex::kernels::small_number_test
