#include "kernels/weight_codes.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

namespace metroplex::kernels {
namespace {

constexpr int64_t kValuesPerTask = 16384;

template <class Body>  // body(index of a row over all matrices)
void for_rows(const CodesShape& shape, const Body& body) {
  const int64_t rows_per_task = std::max<int64_t>(1, kValuesPerTask / std::max<int64_t>(1, shape.columns));
  at::parallel_for(0, shape.matrices * shape.rows, rows_per_task, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

// The index of the scale of a row's first block of 128 x 128 values.
int64_t first_scale(int64_t row, const CodesShape& shape) {
  return (row / shape.rows * shape.row_blocks() + row % shape.rows / kE4m3Block) * shape.column_blocks();
}

std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (uint32_t code = 0; code < values.size(); ++code) values[code] = small_value(code, e4m3_code());
  return values;
}

}  // namespace

template <class T>
void encode_e4m3(uint8_t* codes, float* scales, const T* x, const CodesShape& shape) {
  const int64_t across = shape.column_blocks(), blocks = shape.matrices * shape.row_blocks() * across;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t down = block / across % shape.row_blocks(), matrix = block / across / shape.row_blocks(),
                    first_row = matrix * shape.rows + down * kE4m3Block,
                    end_row = matrix * shape.rows + std::min(shape.rows, (down + 1) * kE4m3Block),
                    first = block % across * kE4m3Block, last = std::min(shape.columns, first + kE4m3Block);
      float magnitude = 0;
      for (int64_t row = first_row; row < end_row; ++row) {
        for (int64_t column = first; column < last; ++column)
          magnitude = std::max(magnitude, std::abs(static_cast<float>(load(x[row * shape.columns + column]))));
      }
      const float scale = scales[block] = e4m3_block_scale(magnitude);
      for (int64_t row = first_row; row < end_row; ++row) {
        for (int64_t at = row * shape.columns + first; at < row * shape.columns + last; ++at)
          codes[at] = encode_value(static_cast<float>(load(x[at])), scale, e4m3_code());
      }
    }
  });
}

template <class T>
void decode_e4m3(T* x, const uint8_t* codes, const float* scales, const CodesShape& shape) {
  const std::array<float, 256> values = e4m3_values();
  for_rows(shape, [&](int64_t row) {
    const float* const own = scales + first_scale(row, shape);
    const uint8_t* const from = codes + row * shape.columns;
    T* const to = x + row * shape.columns;
    for (int64_t column = 0; column < shape.columns; ++column)
      to[column] = store<T>(values[from[column]] * own[column / kE4m3Block]);
  });
}

template <class T>
void encode_e2m1(const E2m1Codes& out, const T* x, const Wide<T>* magnitudes, const CodesShape& shape) {
  for (int64_t matrix = 0; matrix < shape.matrices; ++matrix)
    out.matrix_scales[matrix] = e2m1_matrix_scale(static_cast<float>(magnitudes[matrix]));
  for_rows(shape, [&](int64_t row) {
    const float matrix_scale = out.matrix_scales[row / shape.rows];
    for (int64_t at = row * shape.columns; at < (row + 1) * shape.columns; at += kE2m1Block)
      encode_e2m1_block(out.codes + at / 2, out.scales + at / kE2m1Block, x + at, matrix_scale);
  });
}

template <class T>
void decode_e2m1(T* x, const E2m1Codes& in, const CodesShape& shape) {
  for_rows(shape, [&](int64_t row) {
    const float matrix_scale = in.matrix_scales[row / shape.rows];
    for (int64_t at = row * shape.columns; at < (row + 1) * shape.columns; at += kE2m1Block) {
      const float scale = small_value(in.scales[at / kE2m1Block], e4m3_code()) * matrix_scale;
      for (int64_t i = 0; i < kE2m1Block; i += 2) {
        const uint32_t pair = in.codes[(at + i) / 2];
        x[at + i] = store<T>(small_value(pair & 15U, e2m1_code()) * scale);
        x[at + i + 1] = store<T>(small_value(pair >> 4, e2m1_code()) * scale);
      }
    }
  });
}

#define MPX_INSTANTIATE(T)                                                                     \
  template void encode_e4m3<T>(uint8_t*, float*, const T*, const CodesShape&);                 \
  template void decode_e4m3<T>(T*, const uint8_t*, const float*, const CodesShape&);           \
  template void encode_e2m1<T>(const E2m1Codes&, const T*, const Wide<T>*, const CodesShape&); \
  template void decode_e2m1<T>(T*, const E2m1Codes&, const CodesShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);
#undef MPX_INSTANTIATE

}  // namespace metroplex::kernels
