// Rows as bytes, in which ranks exchange them: MXFP8 of the Microscaling Formats Specification 1.0. A row of
// `columns` values becomes `columns` E4M3 codes, then a scale for every 32 of them. Byte b of a scale is 2^(b - 127)
// (E8M0). The decoded values equal those of round_blocks with blocks of 32 columns and BlockFactor::power_of_two.
#pragma once

#include <cstdint>

#include "kernels/half.h"
#include "kernels/round_blocks.h"
#include "kernels/small_codes.h"

struct CUstream_st;

namespace metroplex::kernels {

constexpr int64_t kRowBlock = 32;

// `columns` is a multiple of kRowBlock.
struct RowCodesShape {
  int64_t rows = 0, columns = 0;

  constexpr int64_t row_blocks() const { return columns / kRowBlock; }
  constexpr int64_t row_bytes() const { return columns + row_blocks(); }
};

// codes [rows, row_bytes], x [rows, columns]. A NaN or an infinity becomes NaN.
template <class T>
void encode_rows(uint8_t* codes, const T* x, const RowCodesShape& shape);
template <class T>
void decode_rows(T* x, const uint8_t* codes, const RowCodesShape& shape);

template <class T>
void encode_rows_cuda(uint8_t* codes, const T* x, const RowCodesShape& shape, CUstream_st* stream);
template <class T>
void decode_rows_cuda(T* x, const uint8_t* codes, const RowCodesShape& shape, CUstream_st* stream);

// The factor that values of a block are multiplied by, a power of two whose inverse has a byte from 1 to 254.
template <class W>
constexpr MPX_INLINE W row_block_factor(W magnitude) {
  const W factor = code_factors(magnitude, W(0), SmallNumber::e4m3, BlockFactor::power_of_two).encode;
  constexpr W kMost = W(0x1p126F), kLeast = W(1) / W(0x1p126F) / 2;
  return factor > kMost ? kMost : factor < kLeast ? kLeast : factor;
}
template <class W>
constexpr MPX_INLINE uint8_t row_scale_code(W factor) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, static_cast<float>(W(1) / factor));
  return static_cast<uint8_t>(bits >> 23);
}
constexpr MPX_INLINE float row_scale(uint8_t code) { return __builtin_bit_cast(float, uint32_t{code} << 23); }

template <class W>
constexpr MPX_INLINE uint8_t row_code(W x, W factor) {
  return small_code(static_cast<float>(round_small(x * factor, e4m3_code().number)), e4m3_code());
}

}  // namespace metroplex::kernels
