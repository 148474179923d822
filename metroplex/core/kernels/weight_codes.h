// Weights stored as codes with scales. Decoded values are exact in bf16 and wider types, because the fp32 scales are
// powers of two. Encoding decoded values yields the same values.
//
//   format  code of a value  scale
//   E4M3    1 byte           fp32 for each block of 128 x 128 values
//   E2M1    4 bits           E4M3 for each 16 consecutive columns, times fp32 for each matrix (NVFP4)
//
// The byte of two E2M1 codes has the even column in its low bits. With E4M3, a NaN decodes to NaN, and a block with
// infinity decodes to NaN. With E2M1, a matrix whose magnitude is not finite decodes to values that are not finite.
#pragma once

#include <cstdint>

#include "kernels/half.h"
#include "kernels/small_codes.h"

struct CUstream_st;

namespace metroplex::kernels {

constexpr int64_t kE4m3Block = 128, kE2m1Block = 16;

// Contiguous matrices, such as those of the experts of a layer. With E2M1, `columns` is a multiple of 16.
struct CodesShape {
  int64_t matrices = 1, rows = 0, columns = 0;

  constexpr int64_t values() const { return matrices * rows * columns; }
  constexpr int64_t row_blocks() const { return (rows + kE4m3Block - 1) / kE4m3Block; }
  constexpr int64_t column_blocks() const { return (columns + kE4m3Block - 1) / kE4m3Block; }
};

// codes [matrices, rows, columns], scales [matrices, row_blocks, column_blocks].
template <class T>
void encode_e4m3(uint8_t* codes, float* scales, const T* x, const CodesShape& shape);
template <class T>
void decode_e4m3(T* x, const uint8_t* codes, const float* scales, const CodesShape& shape);

// codes [matrices, rows, columns / 2], scales [matrices, rows, columns / 16], matrix_scales [matrices].
struct E2m1Codes {
  uint8_t *codes, *scales;
  float* matrix_scales;
};
// `magnitudes` [matrices]: the largest of each whole matrix (largest_magnitudes() in round_blocks.h).
template <class T>
void encode_e2m1(const E2m1Codes& out, const T* x, const Wide<T>* magnitudes, const CodesShape& shape);
template <class T>
void decode_e2m1(T* x, const E2m1Codes& in, const CodesShape& shape);

template <class T>
void encode_e4m3_cuda(uint8_t* codes, float* scales, const T* x, const CodesShape& shape, CUstream_st* stream);
template <class T>
void decode_e4m3_cuda(T* x, const uint8_t* codes, const float* scales, const CodesShape& shape, CUstream_st* stream);
template <class T>
void encode_e2m1_cuda(const E2m1Codes& out, const T* x, const Wide<T>* magnitudes, const CodesShape& shape,
                      CUstream_st* stream);
template <class T>
void decode_e2m1_cuda(T* x, const E2m1Codes& in, const CodesShape& shape, CUstream_st* stream);

// Returns the smallest power of two, at least 2^-100, for which magnitude / scale is at most `most`; infinity for
// infinity or NaN. `most` is not a power of two.
constexpr MPX_INLINE float power_scale(float magnitude, float most) {
  constexpr float kLeast = 0x1p-100F;
  if (magnitude <= kLeast * most) return kLeast;
  const float scale = floor_power(magnitude) / floor_power(most);
  return magnitude > scale * most ? 2 * scale : scale;
}

// Magnitudes up to 464 round to at most 448, E4M3's largest value. With this limit, the largest scale after rounding
// requires the same power of two.
constexpr float kE4m3Limit = 464;

constexpr MPX_INLINE float e4m3_block_scale(float magnitude) { return power_scale(magnitude, kE4m3Limit); }
constexpr MPX_INLINE float e2m1_matrix_scale(float magnitude) {
  return power_scale(magnitude, kE4m3Limit * e2m1_code().number.largest);
}
// The code of the scale of 16 values. Scales below E4M3's smallest normal value, which are less accurate, are not
// used.
constexpr MPX_INLINE uint8_t e2m1_block_scale(float magnitude, float matrix_scale) {
  constexpr float kLeast = 0x1p-6F;
  const float scale = magnitude / (e2m1_code().number.largest * matrix_scale);
  return small_code(round_small(scale < kLeast ? kLeast : scale, e4m3_code().number), e4m3_code());
}

constexpr MPX_INLINE uint8_t encode_value(float x, float scale, const CodeForm& form) {
  return small_code(round_small(x / scale, form.number), form);
}

// Encodes 16 values.
template <class T>
constexpr MPX_INLINE void encode_e2m1_block(uint8_t* codes, uint8_t* scale, const T* x, float matrix_scale) {
  float magnitude = 0;
  for (int64_t i = 0; i < kE2m1Block; ++i) {
    const auto value = static_cast<float>(load(x[i]));
    const float size = value < 0 ? -value : value;
    magnitude = magnitude < size ? size : magnitude;
  }
  *scale = e2m1_block_scale(magnitude, matrix_scale);
  const float step = small_value(*scale, e4m3_code()) * matrix_scale;
  for (int64_t i = 0; i < kE2m1Block; i += 2) {
    const auto low = encode_value(static_cast<float>(load(x[i])), step, e2m1_code()),
               high = encode_value(static_cast<float>(load(x[i + 1])), step, e2m1_code());
    codes[i / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

}  // namespace metroplex::kernels
