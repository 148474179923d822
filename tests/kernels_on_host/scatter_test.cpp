// Rows of a table that occur more often than a single thread sums.
#include <algorithm>
#include <numeric>

#include "kernels/embedding.h"
#include "kernels_on_host/far_array.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::scatter_test {
namespace {

constexpr int64_t kShort = 32;  // an index with at most this many rows has the bits of the CPU reference

struct Draws {
  int64_t index, times;
};

struct Indices {
  std::vector<int64_t> drawn, sorted, order;
};

// Each index occurs `times` times, in random order.
Indices make_indices(const std::vector<Draws>& draws) {
  Indices made;
  for (const Draws& d : draws) made.sorted.insert(made.sorted.end(), static_cast<size_t>(d.times), d.index);
  const size_t count = made.sorted.size();
  made.drawn.resize(count);
  for (size_t i = 0; i < count; ++i) made.drawn[i * 7919 % count] = made.sorted[i];  // 7919 is prime
  made.order.resize(count);
  std::iota(made.order.begin(), made.order.end(), int64_t{0});
  std::stable_sort(made.order.begin(), made.order.end(), [&](int64_t a, int64_t b) {
    return made.drawn[static_cast<size_t>(a)] < made.drawn[static_cast<size_t>(b)];
  });
  return made;
}

// For the sum of `times` rows and the table: 32 lanes sum times / 32 rows each, a tree of 5 steps the lanes, one step
// the table. Each rounds by half a unit of at most `size`; the table's type by half of its own unit.
template <class Table>
double bound(int64_t times, double size, double exact) {
  const double unit = std::is_same_v<Table, double> ? 0x1p-53 : 0x1p-24;
  const double sums = static_cast<double>((times + 31) / 32 + 6) * unit * size;
  if (!kIsHalf<Table>) return sums;
  const double half = std::is_same_v<Table, Bf16> ? 0x1p-8 : 0x1p-11, least = 0x1p-25;
  return sums + (std::fabs(exact) + sums) * half + least;
}

template <class Table, class Dout>
struct Scattered {
  TableShape shape;
  std::vector<Table> start;
  std::vector<Dout> dout;

  std::vector<Table> on_device(const Indices& indices, size_t shift_table, size_t shift_dout) const {
    return std::get<0>(run_all_orders([&] {
      const DeviceArray<Table> table(start, Use::both, "table", shift_table);
      const DeviceArray<Dout> rows(dout, Use::in, "dout", shift_dout);
      const DeviceArray<int64_t> sorted(indices.sorted, Use::in, "sorted"), order(indices.order, Use::in, "order");
      scatter_add_rows_cuda<Table, Dout>(table.data(), {sorted.data(), order.data()}, rows.data(), shape, nullptr);
      return std::tuple{table.values()};
    }));
  }

  // The sum for an element of the table, and the sum of absolute values.
  std::pair<long double, double> sum(const Indices& indices, int64_t row, int64_t column) const {
    const auto at = [&](const auto& from, int64_t r) {
      return static_cast<long double>(load(from[static_cast<size_t>(r * shape.width + column)]));
    };
    std::pair<long double, double> sum{at(start, row), std::fabs(static_cast<double>(at(start, row)))};
    for (int64_t i = 0; i < shape.count; ++i) {
      if (indices.drawn[static_cast<size_t>(i)] != row) continue;
      sum.first += at(dout, i);
      sum.second += std::fabs(static_cast<double>(at(dout, i)));
    }
    return sum;
  }
};

template <class Table, class Dout>
void check(const std::vector<Draws>& draws, int64_t rows, int64_t width) {
  const Indices indices = make_indices(draws);
  const TableShape shape{rows, width, static_cast<int64_t>(indices.drawn.size())};
  const Scattered<Table, Dout> scattered{shape, make_values<Table>(rows * width, 0.7),
                                         make_values<Dout>(shape.count * width, 0.3)};
  std::vector<Table> twin = scattered.start;
  scatter_add_rows<Table, Dout>(twin.data(), indices.drawn.data(), scattered.dout.data(), shape);
  const std::vector<Table> got = scattered.on_device(indices, 0, 0);
  // The same sums element by element as in packs.
  EXPECT_TRUE(same_bits(scattered.on_device(indices, 1, 0), got)) << "table at an odd place";
  EXPECT_TRUE(same_bits(scattered.on_device(indices, 0, 1), got)) << "gradient at an odd place";
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t times = std::count(indices.drawn.begin(), indices.drawn.end(), row);
    for (int64_t column = 0; column < width; ++column) {
      const auto at = static_cast<size_t>(row * width + column);
      if (times <= kShort) {
        ASSERT_EQ(load(got[at]), load(twin[at])) << times << " times row " << row << " column " << column;
      } else {
        const auto [exact, size] = scattered.sum(indices, row, column);
        ASSERT_LE(std::fabs(static_cast<double>(load(got[at]) - exact)),
                  bound<Table>(times, size, static_cast<double>(exact)))
            << times << " times row " << row << " column " << column << " of " << kName<Table>;
      }
    }
  }
}

TEST(ScatterOnHost, RowsThatAreDrawnOftenAreSummedInWidePartsInOneOrder) {
  const std::vector<Draws> many{{-1, 70}, {0, 1},  {1, 32},  {2, 33}, {3, 5},
                                {4, 200}, {5, 31}, {6, 641}, {7, 64}, {9, 40}};
#define MPX_CHECK_SCATTER(Dout, Table)                          \
  for (const int64_t width : {1, 19, 72}) {                     \
    check<Table, Dout>(many, 9, width);                         \
    check<Table, Dout>({{0, 33}}, 1, width);                    \
    check<Table, Dout>({{-5, 31}, {0, 32}, {1, 97}}, 2, width); \
  }
  MPX_FOR_ELEMENT_PAIRS(MPX_CHECK_SCATTER)
}
#undef MPX_CHECK_SCATTER

// So wide that the same block handles the next 32 positions of the same columns.
TEST(ScatterOnHost, ABlockThatSumsSeveralRunsKeepsThemApart) {
  constexpr int64_t kMostBlocks = 8192, kColumns = 8, kWidth = kMostBlocks * kColumns;
  const Indices indices = make_indices({{0, 33}, {1, 40}});
  const TableShape shape{2, kWidth, 73};
  const FarArray<float> dout(shape.count * kWidth, "dout");
  for (int64_t row = 0; row < shape.count; ++row) std::fill_n(dout.data() + row * kWidth, kColumns, 1.0F);
  const DeviceArray<int64_t> sorted(indices.sorted, Use::in, "sorted"), order(indices.order, Use::in, "order");
  for (const uint64_t seed : {0, 1, 2}) {
    const DeviceArray<float> table(std::vector<float>(2 * kWidth), Use::both, "table", 1);  // no packs
    set_order({seed, {0}});
    scatter_add_rows_cuda<float, float>(table.data(), {sorted.data(), order.data()}, dout.data(), shape, nullptr);
    for (int64_t column = 0; column < kColumns; ++column) {
      ASSERT_EQ(table.data()[column], 33.0F);
      ASSERT_EQ(table.data()[kWidth + column], 40.0F);
    }
  }
  set_order({});
}

}  // namespace
}  // namespace metroplex::kernels_on_host::scatter_test
