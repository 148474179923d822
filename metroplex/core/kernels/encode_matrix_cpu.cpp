#include "kernels/encode_matrix.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

namespace metroplex::kernels {
namespace {

// [rows, columns] -> [columns, rows], by squares that fit in the cache.
template <class Element>
void transpose(Element* to, const Element* from, int64_t rows, int64_t columns) {
  constexpr int64_t kSide = 64;
  at::parallel_for(0, (columns + kSide - 1) / kSide, 1, [&](int64_t begin, int64_t end) {
    for (int64_t first_row = 0; first_row < rows; first_row += kSide)
      for (int64_t column = begin * kSide; column < std::min(columns, end * kSide); ++column)
        for (int64_t row = first_row; row < std::min(rows, first_row + kSide); ++row)
          to[column * rows + row] = from[row * columns + column];
  });
}

uint8_t code_of_pair(const uint8_t* pairs, int64_t index) { return pairs[index / 2] >> (index % 2 * 4) & 15; }

}  // namespace

void transpose_codes(uint8_t* to, const uint8_t* from, int64_t rows, int64_t columns, bool pairs) {
  if (!pairs) return transpose(to, from, rows, columns);
  at::parallel_for(0, columns, 64, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column)
      for (int64_t row = 0; row < rows; row += 2)
        to[(column * rows + row) / 2] = static_cast<uint8_t>(code_of_pair(from, row * columns + column) |
                                                             code_of_pair(from, (row + 1) * columns + column) << 4);
  });
}

template <class T>
void encode_matrix(const EncodedMatrix<Wide<T>>& out, const T* x, const Wide<T>* magnitude,
                   const MatrixShape& shape) {
  using W = Wide<T>;
  if (out.largest != nullptr) {
    W largest = 0;
    largest_magnitudes(&largest, x, nullptr, {shape.rows, shape.columns});
    *out.largest = std::max(*out.largest, largest);
  }
  if (out.decode != nullptr) encode_values<T>({out.codes, out.decode}, x, magnitude, nullptr, shape.over_columns());
  if (out.transposed_decode == nullptr) return;
  const RoundShape blocks = shape.over_rows();
  const bool whole = blocks.whole_groups();
  const int64_t down = whole ? 1 : (shape.rows + blocks.block_rows - 1) / blocks.block_rows,
                across = whole ? 1 : blocks.column_blocks();
  std::vector<uint8_t> codes(static_cast<size_t>(shape.rows * shape.columns));
  std::vector<W> decode(static_cast<size_t>(down * across));
  encode_values<T>({codes.data(), decode.data()}, x, magnitude, nullptr, blocks);
  transpose(out.transposed, codes.data(), shape.rows, shape.columns);
  transpose(out.transposed_decode, decode.data(), down, across);
}

#define MPX_INSTANTIATE(T) \
  template void encode_matrix<T>(const EncodedMatrix<Wide<T>>&, const T*, const Wide<T>*, const MatrixShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
