#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/rounding_errors.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::rounding_errors_test {
namespace {

std::vector<double> to_numbers(const RoundingFigures& figures) {
  std::vector<double> numbers(kRoundingFigures);
  std::memcpy(numbers.data(), &figures, sizeof figures);
  return numbers;
}

template <class T>
void check(const RoundShape& shape, const std::vector<int64_t>& counts) {
  using W = Wide<T>;
  SCOPED_TRACE(testing::Message() << kName<T> << " " << shape.rows << " x " << shape.columns << " in " << shape.groups
                                  << ", blocks " << shape.block_rows << " x " << shape.block_columns);
  std::vector<T> x = make_values<T>(shape.rows * shape.columns, 0.7);
  x[3] = store<T>(std::numeric_limits<W>::infinity());
  std::vector<W> rounded(x.size());
  const std::vector<W> magnitudes(static_cast<size_t>(shape.groups), W(0.5));
  const int64_t* const given = counts.empty() ? nullptr : counts.data();
  round_blocks(rounded.data(), x.data(), magnitudes.data(), given, shape);
  RoundingFigures on_cpu{.elements = 5, .largest = 0.25};  // figures are added
  rounding_errors<T>(&on_cpu, {x.data(), rounded.data(), magnitudes.data(), given, shape});
  EXPECT_GT(on_cpu.squared_error, 0);
  EXPECT_EQ(on_cpu.nonfinite, 1);
  EXPECT_EQ(on_cpu.saturated > 0, shape.factor != BlockFactor::power_of_two);
  EXPECT_EQ(on_cpu.decode > 0, shape.factor != BlockFactor::power_of_two);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(x, Use::in, "x");
    const DeviceArray<W> codes(rounded, Use::in, "rounded"), largest(magnitudes, Use::in, "magnitudes");
    const DeviceArray<int64_t> rows(counts, Use::in, "counts");
    const DeviceArray<double> figures(to_numbers({.elements = 5, .largest = 0.25}), Use::both, "figures"),
        parts(std::vector<double>(static_cast<size_t>(shape.groups * kFigureParts * kRoundingFigures)), Use::out,
              "parts");
    const int64_t* const on_device = counts.empty() ? nullptr : rows.data();
    rounding_errors_cuda<T>(reinterpret_cast<RoundingFigures*>(figures.data()),
                            reinterpret_cast<RoundingFigures*>(parts.data()),
                            {there.data(), codes.data(), largest.data(), on_device, shape}, nullptr);
    return std::tuple{figures.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), to_numbers(on_cpu)));
}

// Whole groups of more elements than the threads of all parts, and blocks of groups with counts, which end with the
// group and the row.
template <class T>
void check_all() {
  check<T>({300, 120, 1, 0, 0, SmallNumber::e4m3, BlockFactor::fp32}, {});
  check<T>({40, 17, 3, 0, 0, SmallNumber::e5m2, BlockFactor::fp32}, {9, 0, 14});
  check<T>({40, 17, 2, 1, 16, SmallNumber::e4m3, BlockFactor::power_of_two}, {30, 30});  // counts beyond the rows
}

TEST(RoundingErrors, EqualTheCpu) {
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
  check<float>({40, 50, 3, 1, 16, SmallNumber::e2m1, BlockFactor::e4m3}, {9, 0, 14});
  check<double>({40, 50, 2, 16, 16, SmallNumber::e2m1, BlockFactor::e4m3}, {});
  check<Bf16>({40, 50, 2, 16, 1, SmallNumber::e2m1, BlockFactor::e4m3}, {19, 20});
  check<Bf16>({1200, 60, 1, 1, 2, SmallNumber::e2m1, BlockFactor::e4m3}, {});  // more blocks than threads
}

}  // namespace
}  // namespace metroplex::kernels_on_host::rounding_errors_test
