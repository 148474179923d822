#include "kernels/row_codes.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

namespace metroplex::kernels {
namespace {

constexpr int64_t kValuesPerTask = 16384;

template <class Body>  // body(row)
void for_rows(const RowCodesShape& shape, const Body& body) {
  const int64_t rows_per_task = std::max<int64_t>(1, kValuesPerTask / std::max<int64_t>(1, shape.columns));
  at::parallel_for(0, shape.rows, rows_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace

template <class T>
void encode_rows(uint8_t* codes, const T* x, const RowCodesShape& shape) {
  using W = Wide<T>;
  for_rows(shape, [&](int64_t row) {
    uint8_t* const out = codes + row * shape.row_bytes();
    for (int64_t block = 0; block < shape.row_blocks(); ++block) {
      const int64_t first = block * kRowBlock;
      std::array<W, kRowBlock> values{};
      W magnitude = 0;
      for (int64_t i = 0; i < kRowBlock; ++i) {
        const W value = values[static_cast<size_t>(i)] = load(x[row * shape.columns + first + i]);
        magnitude = std::max(magnitude, value < 0 ? -value : value);
      }
      const W factor = row_block_factor(magnitude);
      for (int64_t i = 0; i < kRowBlock; ++i) out[first + i] = row_code(values[static_cast<size_t>(i)], factor);
      out[shape.columns + block] = row_scale_code(factor);
    }
  });
}

template <class T>
void decode_rows(T* x, const uint8_t* codes, const RowCodesShape& shape) {
  for_rows(shape, [&](int64_t row) {
    const uint8_t* const in = codes + row * shape.row_bytes();
    for (int64_t column = 0; column < shape.columns; ++column) {
      const float scale = row_scale(in[shape.columns + column / kRowBlock]);
      x[row * shape.columns + column] =
          store<T>(static_cast<Wide<T>>(small_value(in[column], e4m3_code())) * static_cast<Wide<T>>(scale));
    }
  });
}

#define MPX_INSTANTIATE(T)                                                \
  template void encode_rows<T>(uint8_t*, const T*, const RowCodesShape&); \
  template void decode_rows<T>(T*, const uint8_t*, const RowCodesShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);
#undef MPX_INSTANTIATE

}  // namespace metroplex::kernels
