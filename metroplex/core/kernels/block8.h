// 8-bit moments with one scale per 256 elements. A code is a small float: 3 mantissa bits, with 4 exponent bits and a
// sign (first moments), or 5 exponent bits (second moments, which are not negative). The scale is the largest power
// of two that does not exceed the block's largest magnitude. Codes therefore cover 16 or 32 binades below it, and
// code 0 is zero. Values are rounded before the scale is chosen, and the scale is a power of two, so re-encoding
// decoded values gives the same bits. All-zero bytes decode to zeros.
// Rounding to nearest has a relative error of 2^-4 within the range. Below the range a first moment is off by at most
// 0.57 * 2^-15 scale (or flushed to zero if scale < 2^-95). A second moment is raised to 1.125 * 2^-31 scale, never
// to 0, so that no update explodes. A NaN or infinity turns its whole block into NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/number.h"

struct CUstream_st;

namespace metroplex::kernels {

constexpr int64_t kBlock8 = 256;
constexpr int64_t block8_scales(int64_t n) { return (n + kBlock8 - 1) / kBlock8; }

constexpr int kBlock8Cut = 20;                     // mantissa bits of a float that are rounded off
constexpr uint32_t kBlock8LeastScale = 32U << 23;  // bits of 2^-95: floats 31 binades below are still normal

template <bool is_signed>
constexpr uint32_t kBlock8Binades = is_signed ? 16 : 32;

// Rounds a magnitude to 3 mantissa bits; the last bit stays set to distinguish tiny values from zero. The second
// overload rounds stochastically with 16 random bits.
constexpr MPX_INLINE uint32_t block8_cut(uint32_t sum, uint32_t magnitude) {
  return (sum >> kBlock8Cut << kBlock8Cut) | if_less(0, magnitude, 1, 0);
}
constexpr MPX_INLINE uint32_t block8_round(uint32_t magnitude) {
  constexpr uint32_t kHalf = (1U << (kBlock8Cut - 1)) - 1;
  return block8_cut(magnitude + kHalf + ((magnitude >> kBlock8Cut) & 1), magnitude);
}
constexpr MPX_INLINE uint32_t block8_round(uint32_t magnitude, uint32_t noise) {
  return block8_cut(magnitude + (noise << (kBlock8Cut - 16)), magnitude);
}

// Returns the scale of a block from its largest rounded magnitude.
template <bool is_signed>
constexpr MPX_INLINE float block8_scale(uint32_t largest) {
  if (largest >= kFloatInfinity) return std::numeric_limits<float>::quiet_NaN();
  if (largest >= kBlock8LeastScale) return __builtin_bit_cast(float, largest& kFloatInfinity);
  return is_signed || largest == 0 ? 0.0F : __builtin_bit_cast(float, kBlock8LeastScale);
}

// Encodes one block. Not for scales of 0 or NaN, for which all codes are 0.
template <bool is_signed>
struct Block8Coder {
  int32_t offset;  // offset of codes from the upper bits of a float
  float least;     // smallest magnitude in range

  constexpr explicit Block8Coder(float scale)
      : offset(static_cast<int32_t>(((__builtin_bit_cast(uint32_t, scale) >> 23) - (kBlock8Binades<is_signed> - 1))
                                    << 3)),
        least(__builtin_bit_cast(float, static_cast<uint32_t>(offset + 1) << kBlock8Cut)) {}

  // `rounded` is block8_round of x's magnitude. A first moment below the range becomes `least` if it exceeds
  // `threshold` * least; `threshold` in [0, 1) is 0.5 or a random number.
  constexpr MPX_INLINE uint8_t code(float x, uint32_t rounded, float threshold) const {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x), upper = rounded >> kBlock8Cut;
    const auto limit = __builtin_bit_cast(uint32_t, least * threshold);
    const uint32_t below = is_signed ? if_less(limit, bits & ~kFloatSign, 1, 0) : rounded & 1;
    const uint32_t code = if_less(static_cast<uint32_t>(offset), upper, upper - static_cast<uint32_t>(offset), below);
    const uint32_t sign = is_signed ? if_less(0, code, (bits & kFloatSign) >> 24, 0) : 0;
    return static_cast<uint8_t>(code | sign);
  }
};

template <bool is_signed>
constexpr MPX_INLINE float block8_decode(uint8_t code, float scale) {
  constexpr uint32_t kOffset = (127U - (kBlock8Binades<is_signed> - 1)) << 3;
  const uint32_t index = is_signed ? code & 0x7FU : code;
  const uint32_t unit = index == 0 ? 0U : (index + kOffset) << kBlock8Cut;
  const uint32_t sign = is_signed ? (code & 0x80U) << 24 : 0;
  return __builtin_bit_cast(float, unit | sign) * scale;
}

// Convert whole arrays between fp32 and the smaller formats; checkpoints store fp32. Re-encoding decoded values
// gives the same bits. Rounding is deterministic, so CPU and GPU give the same bits.

// codes [n], scales [block8_scales(n)]. is_signed: first moments; otherwise values must not be negative.
void block8_encode(const float* values, int64_t n, bool is_signed, uint8_t* codes, float* scales);
void block8_decode(const uint8_t* codes, const float* scales, int64_t n, bool is_signed, float* values);

// Splits fp32 into bf16 parameter and remainder, see split_float.
void split_floats(const float* values, int64_t n, uint16_t* param, uint16_t* remainder);
void join_floats(const uint16_t* param, const uint16_t* remainder, int64_t n, float* values);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
void block8_encode_cuda(const float* values, int64_t n, bool is_signed, uint8_t* codes, float* scales,
                        CUstream_st* stream);
void block8_decode_cuda(const uint8_t* codes, const float* scales, int64_t n, bool is_signed, float* values,
                        CUstream_st* stream);
void split_floats_cuda(const float* values, int64_t n, uint16_t* param, uint16_t* remainder, CUstream_st* stream);
void join_floats_cuda(const uint16_t* param, const uint16_t* remainder, int64_t n, float* values,
                      CUstream_st* stream);

}  // namespace metroplex::kernels
