#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/round_blocks.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::round_blocks_test {
namespace {

const std::vector<int64_t> kCounters = {4, 7, 11};  // of three samples

RoundingNoise make_noise(bool random, int64_t rows, const int64_t* counters) {
  RoundingNoise noise;
  if (!random) return noise;
  noise.positions.key = 5, noise.positions.width = 50, noise.positions.num_rows = rows;
  noise.positions.rows = {counters, 3, 2};
  noise.ranges[0] = {0, 3}, noise.ranges[1] = {10, 20}, noise.num_ranges = 2;
  return noise;
}

template <class T, class Out = Wide<T>>
void check(const RoundShape& shape, const std::vector<int64_t>& counts, bool random = false) {
  using W = Wide<T>;
  SCOPED_TRACE(testing::Message() << kName<T> << " " << shape.rows << " x " << shape.columns << " in " << shape.groups
                                  << ", blocks " << shape.block_rows << " x " << shape.block_columns);
  const std::vector<T> x = make_values<T>(shape.rows * shape.columns, 0.7);
  const std::vector<Out> none(x.size(), store<Out>(-7));
  const std::vector<W> zeros(static_cast<size_t>(shape.groups));
  std::vector<Out> on_cpu = none;
  std::vector<W> magnitudes = zeros;
  const int64_t* const given = counts.empty() ? nullptr : counts.data();
  largest_magnitudes(magnitudes.data(), x.data(), given, shape);
  round_blocks(on_cpu.data(), x.data(), magnitudes.data(), given, shape,
               make_noise(random, shape.rows, kCounters.data()));
  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(x, Use::in, "x", 0);
    const DeviceArray<int64_t> rows(counts, Use::in, "counts", 0), counters(kCounters, Use::in, "counters", 0);
    const RoundingNoise noise = make_noise(random, shape.rows, counters.data());
    const DeviceArray<Out> out(none, Use::both, "out", 0);
    const DeviceArray<W> largest(zeros, Use::out, "magnitudes", 0),
        parts(std::vector<W>(static_cast<size_t>(shape.groups * kMagnitudeParts)), Use::out, "parts", 0);
    const int64_t* const on_device = counts.empty() ? nullptr : rows.data();
    largest_magnitudes_cuda<T>(largest.data(), parts.data(), there.data(), on_device, shape, nullptr);
    round_blocks_cuda<T, Out>(out.data(), there.data(), largest.data(), on_device, shape, noise, nullptr, nullptr);
    return std::tuple{largest.values(), out.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), magnitudes));
  EXPECT_TRUE(same_bits(std::get<1>(got), on_cpu));
}

template <class T>
void check_codes(const RoundShape& shape, const std::vector<int64_t>& counts) {
  using W = Wide<T>;
  const std::vector<T> x = make_values<T>(shape.rows * shape.columns, 0.7);
  const std::vector<uint8_t> none(x.size(), 1);
  std::vector<uint8_t> on_cpu = none;
  const std::vector<W> magnitudes(static_cast<size_t>(shape.groups), W(0.25));
  const int64_t blocks = (shape.rows + shape.block_rows - 1) / std::max<int64_t>(1, shape.block_rows);
  std::vector<W> decode(static_cast<size_t>(shape.whole_groups() ? shape.groups : blocks * shape.column_blocks()));
  encode_values<T>({on_cpu.data(), decode.data()}, x.data(), magnitudes.data(),
                   counts.empty() ? nullptr : counts.data(), shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(x, Use::in, "x", 0);
    const DeviceArray<int64_t> rows(counts, Use::in, "counts", 0);
    const DeviceArray<W> largest(magnitudes, Use::in, "magnitudes", 0),
        factors(std::vector<W>(decode.size()), Use::out, "decode", 0);
    const DeviceArray<uint8_t> out(none, Use::both, "codes", 0);
    encode_values_cuda<T>({out.data(), factors.data()}, there.data(), largest.data(),
                          counts.empty() ? nullptr : rows.data(), shape, {}, nullptr);
    return std::tuple{out.values(), factors.values()};
  });
  EXPECT_EQ(std::get<0>(got), on_cpu);
  EXPECT_EQ(std::get<1>(got), decode);
}

// Codes as bf16 numbers, with the factors of all groups.
void check_numbers(const RoundShape& shape, const std::vector<int64_t>& counts) {
  const std::vector<Bf16> x = make_values<Bf16>(shape.rows * shape.columns, 0.7), none(x.size(), store<Bf16>(-7));
  std::vector<float> magnitudes = make_values<float>(shape.groups, 0.4), decode(magnitudes.size());
  for (float& magnitude : magnitudes) magnitude = std::fabs(magnitude);
  std::vector<Bf16> on_cpu = none;
  round_blocks(on_cpu.data(), x.data(), magnitudes.data(), counts.empty() ? nullptr : counts.data(), shape, {},
               decode.data());
  const auto got = run_all_orders([&] {
    const DeviceArray<Bf16> there(x, Use::in, "x", 0), out(none, Use::both, "numbers", 0);
    const DeviceArray<int64_t> rows(counts, Use::in, "counts", 0);
    const DeviceArray<float> largest(magnitudes, Use::in, "magnitudes", 0),
        factors(std::vector<float>(decode.size()), Use::out, "decode", 0);
    round_blocks_cuda<Bf16, Bf16>(out.data(), there.data(), largest.data(), counts.empty() ? nullptr : rows.data(),
                                  shape, {}, factors.data(), nullptr);
    return std::tuple{out.values(), factors.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), on_cpu));
  EXPECT_EQ(std::get<1>(got), decode);
}

// Pairs of E2M1 codes, with a value that is not a number in one block.
template <class T>
void check_pairs(int64_t rows, int64_t columns, int64_t block_rows, int64_t block_columns, bool random) {
  using W = Wide<T>;
  SCOPED_TRACE(testing::Message() << kName<T> << " " << rows << " x " << columns << ", blocks " << block_rows << " x "
                                  << block_columns);
  const RoundShape shape{rows, columns, 1, block_rows, block_columns, SmallNumber::e2m1, BlockFactor::e4m3};
  std::vector<T> x = make_values<T>(rows * columns, 0.7);
  const auto blocks = static_cast<size_t>((rows + block_rows - 1) / block_rows * shape.column_blocks());
  if (!x.empty()) x.back() = store<T>(std::numeric_limits<W>::quiet_NaN());
  const std::vector<uint8_t> none(x.size() / 2, 1);
  std::vector<uint8_t> codes = none, factors(blocks);
  const std::vector<W> magnitudes(1, W(0.25));
  std::vector<W> decode(1);
  encode_values<T>({codes.data(), decode.data(), factors.data()}, x.data(), magnitudes.data(), nullptr, shape,
                   make_noise(random, rows, kCounters.data()));
  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(x, Use::in, "x", 0);
    const DeviceArray<int64_t> counters(kCounters, Use::in, "counters", 0);
    const DeviceArray<W> largest(magnitudes, Use::in, "magnitudes", 0),
        group(std::vector<W>(1), Use::out, "decode", 0);
    const DeviceArray<uint8_t> out(none, Use::both, "codes", 0),
        of_blocks(std::vector<uint8_t>(blocks), Use::out, "factors", 0);
    encode_values_cuda<T>({out.data(), group.data(), of_blocks.data()}, there.data(), largest.data(), nullptr, shape,
                          make_noise(random, rows, counters.data()), nullptr);
    return std::tuple{out.values(), group.values(), of_blocks.values()};
  });
  EXPECT_EQ(std::get<0>(got), codes);
  EXPECT_EQ(std::get<1>(got), decode);
  EXPECT_EQ(std::get<2>(got), factors);
}

template <class T>
void check_rotation(const RoundShape& shape, const std::vector<int64_t>& counts) {
  const std::vector<T> x = make_values<T>(shape.rows * shape.columns, 0.7);
  const std::vector<T> none(x.size(), store<T>(-7));
  std::vector<T> on_cpu = none;
  rotate_rows(on_cpu.data(), x.data(), counts.empty() ? nullptr : counts.data(), shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(x, Use::in, "x", 0);
    const DeviceArray<int64_t> rows(counts, Use::in, "counts", 0);
    const DeviceArray<T> out(none, Use::both, "out", 0);
    rotate_rows_cuda<T>(out.data(), there.data(), counts.empty() ? nullptr : rows.data(), shape, nullptr);
    return std::tuple{out.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), on_cpu));
}

template <class T>
void check_all() {
  const std::pair<int64_t, int64_t> blocks[] = {{0, 0}, {1, 16}, {8, 1}, {16, 16}};
  for (const auto& [rows, columns] : blocks) {
    const BlockFactor factor = rows == 0 ? BlockFactor::fp32 : BlockFactor::power_of_two;
    check<T>({9, 21, 1, rows, columns, SmallNumber::e4m3, factor}, {});
    check<T>({20, 17, 3, rows, columns, SmallNumber::e5m2, factor}, {9, 0, 4});
  }
  check<T>({20, 17, 3, 16, 16, SmallNumber::e4m3, BlockFactor::power_of_two}, {4, 30, 5});  // counts beyond the rows
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 16}, {16, 1}, {16, 16}}) {
    check<T>({40, 17, 3, rows, columns, SmallNumber::e2m1, BlockFactor::e4m3}, {9, 0, 20});
    check<T>({42, 21, 1, rows, columns, SmallNumber::e2m1, BlockFactor::e4m3}, {}, true);
  }
  // Rows of whole packs: lanes that share a block, the last of which has fewer columns, and more packs than threads.
  check<T>({9, 40, 1, 1, 32, SmallNumber::e4m3, BlockFactor::power_of_two}, {});
  check<T>({9, 2088, 3, 1, 16, SmallNumber::e2m1, BlockFactor::e4m3}, {4, 0, 3});
  check<T>({9, 2088, 3, 0, 0, SmallNumber::e5m2, BlockFactor::fp32}, {4, 0, 3});
  check<T>({42, 40, 1, 1, 16, SmallNumber::e2m1, BlockFactor::e4m3}, {}, true);
  for (const SmallNumber number : {SmallNumber::e4m3, SmallNumber::e5m2}) {
    check_codes<T>({13, 7, 1, 0, 0, number, BlockFactor::fp32}, {});
    check_codes<T>({13, 7, 3, 0, 0, number, BlockFactor::fp32}, {4, 0, 6});
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 16}, {16, 1}, {16, 16}})
      check_codes<T>({20, 17, 1, rows, columns, number, BlockFactor::power_of_two}, {});
  }
  check_codes<T>({1, 0, 1, 0, 0, SmallNumber::e4m3, BlockFactor::fp32}, {});  // only the factor
  check_codes<T>({1, 9000, 1, 0, 0, SmallNumber::e4m3, BlockFactor::fp32}, {});
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 16}, {16, 1}, {16, 16}}) {
    check_pairs<T>(37, 70, rows, columns, false);  // parts of blocks and of tiles
    check_pairs<T>(42, 32, rows, columns, true);
    check_pairs<T>(0, 32, rows, columns, false);  // only the tensor's factor
  }
  check_rotation<T>({70, 17, 3}, {35, 0, 20});
  check_rotation<T>({64, 5, 2}, {});
}

TEST(RoundBlocks, EqualTheCpu) {
  check<Bf16, Bf16>({40, 33, 3, 1, 16, SmallNumber::e4m3, BlockFactor::power_of_two}, {9, 0, 20});
  for (const int64_t columns : {0, 7, 40, 2088}) {  // nothing, no whole packs, one step of a row, more than one
    check_numbers({13, columns, 3}, {4, 0, 6});
    check_numbers({12, columns, 3, 0, 0, SmallNumber::e5m2}, {});
    check_numbers({0, columns, 3}, {0, 0, 0});
  }
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
}

}  // namespace
}  // namespace metroplex::kernels_on_host::round_blocks_test
