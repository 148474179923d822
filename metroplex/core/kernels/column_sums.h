// Sums over the rows of a matrix, for bias gradients. Element types as in half.h, summed in their wide type.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

struct ColumnSumsShape {
  int64_t rows = 0, width = 0, stride = 0;  // row stride in elements
  bool adds = false;                        // adds to `out`; otherwise overwrites it
};

// out[c] += or = the sum of column c of x, in row order.
template <class T>
void column_sums(Wide<T>* out, const T* x, const ColumnSumsShape& shape);

// GPU version, enqueued on `stream`, in blocks of rows; all pointers are device pointers. `lines` is scratch for
// column_lines<T>(shape) * width numbers. Throws base::Error("cuda", ...) if the launch fails.
template <class T>
void column_sums_cuda(Wide<T>* out, const T* x, Wide<T>* lines, const ColumnSumsShape& shape, CUstream_st* stream);

// On a GPU a thread block sums a stripe of kStripeBytes of adjacent rows into one line. The number of rows depends
// only on shape and type, so sums have the same bits on every GPU. It is between 8 and 32, so that each of 132 SMs
// gets two thread blocks. Large matrices use more rows, with at least 2048 blocks. With 32 rows a warp has four
// loads in flight, and fp32 lines take 1/16 of the memory of a half-type x.
constexpr int64_t kStripeBytes = 512;  // per row: 16 bytes for every thread of a warp
template <class T>
constexpr int64_t column_rows_per_line(const ColumnSumsShape& shape) {
  constexpr int64_t kStripe = kStripeBytes / static_cast<int64_t>(sizeof(T)), kFewest = 8, kUsual = 32;
  const int64_t all = shape.rows * ((shape.width + kStripe - 1) / kStripe);
  const int64_t of_few = all / (2 * 132) / kFewest * kFewest, of_many = all / 2048 / kUsual * kUsual;
  if (of_many > kUsual) return of_many;
  return of_few > kUsual ? kUsual : of_few < kFewest ? kFewest : of_few;
}
template <class T>
constexpr int64_t column_lines(const ColumnSumsShape& shape) {
  return (shape.rows + column_rows_per_line<T>(shape) - 1) / column_rows_per_line<T>(shape);
}

// Sums `count` lines of partial results, in order: out [width] += or = their sums. Lines are `stride` numbers apart.
template <class T>
struct LineSums {
  const T* lines = nullptr;
  int64_t count = 0, stride = 0, width = 0;
  T* out = nullptr;
  bool adds = false;
};
// Sums of one launch. The last ones may have no columns.
template <class T>
struct LineSumsTable {
  static constexpr int kMost = 3;
  std::array<LineSums<T>, kMost> all;
};
template <class T>
void sum_lines(const LineSumsTable<T>& table);
template <class T>
void sum_lines_cuda(const LineSumsTable<T>& table, CUstream_st* stream);

}  // namespace metroplex::kernels
