#include <array>
#include <limits>

#include "kernels/column_sums.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::column_sums_test {
namespace {

// Integers from -8 to 8, whose sums every wide type represents exactly: any order of addition gives the same bits.
// The gaps between rows must not be read.
template <class T>
std::vector<T> whole_numbers(const ColumnSumsShape& shape) {
  const int64_t n = shape.rows == 0 ? 0 : (shape.rows - 1) * shape.stride + shape.width;
  std::vector<T> x(static_cast<size_t>(n), store<T>(std::numeric_limits<Wide<T>>::infinity()));
  for (int64_t row = 0; row < shape.rows; ++row)
    for (int64_t c = 0; c < shape.width; ++c)
      x[static_cast<size_t>(row * shape.stride + c)] =
          store<T>(static_cast<Wide<T>>((row * 5 + c * 7 + row * c) % 17 - 8));
  return x;
}

template <class T>
std::vector<Wide<T>> plain_sums(const std::vector<T>& x, const std::vector<Wide<T>>& before,
                                const ColumnSumsShape& shape) {
  std::vector<Wide<T>> sums(before.size());
  for (size_t c = 0; c < sums.size(); ++c) {
    int64_t sum = shape.adds ? static_cast<int64_t>(before[c]) : 0;
    for (int64_t row = 0; row < shape.rows; ++row)
      sum += static_cast<int64_t>(load(x[static_cast<size_t>(row * shape.stride) + c]));
    sums[c] = static_cast<Wide<T>>(sum);
  }
  return sums;
}

template <class T>
void check(const ColumnSumsShape& shape, size_t shift) {
  SCOPED_TRACE(testing::Message() << kName<T> << " " << shape.rows << " x " << shape.width << " of " << shape.stride
                                  << " adds " << shape.adds << " shifted " << shift);
  const std::vector<T> x = whole_numbers<T>(shape);
  std::vector<Wide<T>> before(static_cast<size_t>(shape.width));
  for (size_t c = 0; c < before.size(); ++c) before[c] = static_cast<Wide<T>>(3 * static_cast<int64_t>(c) - 5);
  const std::vector<Wide<T>> want = plain_sums(x, before, shape);
  std::vector<Wide<T>> on_cpu = before;
  column_sums(on_cpu.data(), x.data(), shape);
  EXPECT_TRUE(same_bits(on_cpu, want)) << "on the CPU";
  const auto got = run_all_orders([&] {
    const DeviceArray<T> there(x, Use::in, "x", shift);
    const DeviceArray<Wide<T>> out(before, shape.adds ? Use::both : Use::out, "out", shift),
        lines(std::vector<Wide<T>>(static_cast<size_t>(column_lines<T>(shape) * shape.width)), Use::out, "lines",
              shift);
    column_sums_cuda<T>(out.data(), there.data(), lines.data(), shape, nullptr);
    return std::tuple{out.values()};
  });
  EXPECT_TRUE(same_bits(std::get<0>(got), want));
}

// With and without packed accesses, by width, by stride and by the offset of x; one stripe and several; in lines of
// 8, 16 and 32 rows, the last of which are short.
template <class T>
void check_all() {
  for (const bool adds : {false, true}) {
    for (const size_t shift : {0, 1}) {
      for (const auto& [rows, width, stride] : {std::array<int64_t, 3>{0, 8, 8},
                                                {1, 1, 1},
                                                {1, 5, 9},
                                                {7, 1, 1},
                                                {9, 64, 64},
                                                {9, 64, 72},
                                                {9, 61, 64},
                                                {9, 64, 67},
                                                {19, 300, 300},
                                                {70, 520, 528},
                                                {40, 257, 257},
                                                {5, 16, 0}})
        check<T>({rows, width, stride, adds}, shift);
    }
  }
  check<T>({5001, 3, 3, true}, 0);
  check<T>({8999, 2, 2, false}, 0);
}

TEST(ColumnSumsOnHost, AreThoseOfPlainLoopsForEveryTypeAndShape) {
  EXPECT_EQ(column_rows_per_line<float>({5001, 3, 3}), 16);
  EXPECT_EQ(column_rows_per_line<float>({8999, 2, 2}), 32);
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
}

TEST(ColumnLines, KeepEveryProcessorBusyAndStaySmallBesideX) {
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {8192, 768}, {8192, 2304}, {8192, 3072}, {65536, 4096}, {128, 8192}}) {
    const ColumnSumsShape shape{rows, width, width};
    const int64_t blocks = column_lines<Bf16>(shape) * (width / 256);
    EXPECT_GE(blocks, 2 * 132) << rows << " x " << width;
    EXPECT_LE(blocks, 4096) << rows << " x " << width;
  }
  int64_t fewer = 0;
  for (const int64_t rows : {0, 1, 8, 9, 2111, 2112, 4223, 4224, 8447, 8448, 131071, 131072, 1000001}) {
    const ColumnSumsShape shape{rows, 200, 200};
    const int64_t lines = column_lines<Bf16>(shape), of_line = column_rows_per_line<Bf16>(shape);
    EXPECT_GE(lines * of_line, rows);
    EXPECT_LT((lines - 1) * of_line, std::max<int64_t>(rows, 1));
    if (rows >= 8448) { EXPECT_LE((lines - 1) * 4 * 16, rows * 2) << "a sixteenth of x in bf16"; }
    EXPECT_GE(of_line, fewer) << "more rows, fewer of a line";
    fewer = of_line;
  }
  EXPECT_EQ(fewer, 480);
}

}  // namespace
}  // namespace metroplex::kernels_on_host::column_sums_test
