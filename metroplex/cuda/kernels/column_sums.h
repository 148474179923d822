// Sums over the rows of a matrix: gradients of biases. Elements as in half.h, summed in their wide type.
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

struct ColumnSumsShape {
  int64_t rows = 0, width = 0, stride = 0;  // stride: elements from a row to the next
  bool adds = false;                        // to what lies there, which else is overwritten
};

// out[c] = or += the sum of column c of x, in the order of the rows.
template <class T>
void column_sums(Wide<T>* out, const T* x, const ColumnSumsShape& shape);

// The same on a GPU, enqueued on `stream`, in blocks of rows; all pointers are of the device. `lines` is room for
// column_lines<T>(shape) * width numbers. base::Error("cuda", ...) when nothing was launched.
template <class T>
void column_sums_cuda(Wide<T>* out, const T* x, Wide<T>* lines, const ColumnSumsShape& shape, CUstream_st* stream);

// On a GPU a thread block adds up kStripeBytes of neighbouring rows and leaves their sums in a line. How many rows is
// a function of shape and type alone, so that sums have the same bits on every GPU: of 8 to 32 as many as leave two
// thread blocks to each of 132 processors, and more than 32 where 2048 blocks are enough. Of 32 rows a warp has four
// on their way at once, and lines of floats take a sixteenth of the room of x in a half type.
constexpr int64_t kStripeBytes = 512;  // of a row: 16 for every thread of a warp
template <class T>
constexpr int64_t column_rows_per_line(const ColumnSumsShape& s) {
  constexpr int64_t kStripe = kStripeBytes / static_cast<int64_t>(sizeof(T)), kFewest = 8, kUsual = 32;
  const int64_t all = s.rows * ((s.width + kStripe - 1) / kStripe);
  const int64_t of_few = all / (2 * 132) / kFewest * kFewest, of_many = all / 2048 / kUsual * kUsual;
  if (of_many > kUsual) return of_many;
  return of_few > kUsual ? kUsual : of_few < kFewest ? kFewest : of_few;
}
template <class T>
constexpr int64_t column_lines(const ColumnSumsShape& s) {
  return (s.rows + column_rows_per_line<T>(s) - 1) / column_rows_per_line<T>(s);
}

// On a GPU: what thread blocks left in `count` lines, `stride` numbers apart, added up line by line.
template <class T>
struct LineSums {
  const T* lines;
  int64_t count, stride, width;
  T* out[2];  // [width] each: of the first numbers of the lines, and of the next; the second may be null
  bool adds = false;
};
template <class T>
void sum_lines_cuda(const LineSums<T>& sums, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels
