#include <vector>

#include "kernels/round_blocks.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::round_blocks_test {
namespace {

template <class T>
void check(const RoundShape& shape, const std::vector<int64_t>& counts) {
  using W = Wide<T>;
  SCOPED_TRACE(testing::Message() << kName<T> << " " << shape.rows << " x " << shape.columns << " in " << shape.groups
                                  << ", blocks " << shape.block_rows << " x " << shape.block_columns);
  const std::vector<T> x = make_values<T>(shape.rows * shape.columns, 0.7);
  const std::vector<W> none(x.size(), W(-7)), zeros(static_cast<size_t>(shape.groups));
  std::vector<W> on_cpu = none, magnitudes = zeros;
  const int64_t* const given = counts.empty() ? nullptr : counts.data();
  largest_magnitudes(magnitudes.data(), x.data(), given, shape);
  round_blocks(on_cpu.data(), x.data(), magnitudes.data(), given, shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(x, Use::in, "x", 0);
    const DeviceArray<int64_t> rows(counts, Use::in, "counts", 0);
    const DeviceArray<W> largest(zeros, Use::out, "magnitudes", 0), out(none, Use::both, "out", 0),
        parts(std::vector<W>(static_cast<size_t>(shape.groups * kMagnitudeParts)), Use::out, "parts", 0);
    const int64_t* const on_device = counts.empty() ? nullptr : rows.data();
    largest_magnitudes_cuda<T>(largest.data(), parts.data(), there.data(), on_device, shape, nullptr);
    round_blocks_cuda<T>(out.data(), there.data(), largest.data(), on_device, shape, nullptr);
    return std::tuple{largest.values(), out.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), magnitudes));
  EXPECT_TRUE(same_bits(std::get<1>(got), on_cpu));
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
}

TEST(RoundBlocks, EqualTheCpu) {
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
}

}  // namespace
}  // namespace metroplex::kernels_on_host::round_blocks_test
