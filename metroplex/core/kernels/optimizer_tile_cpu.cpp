#include "kernels/optimizer_tile.h"

#include <algorithm>
#include <cstring>

#include "kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math,fp-contract=off")

namespace metroplex::kernels {
namespace {

template <bool is_signed>
constexpr MPX_INLINE uint32_t noise_half(uint32_t word) {
  return is_signed ? word & 0xFFFF : word >> 16;
}

template <bool is_signed>
MPX_INLINE void decode(const uint8_t* __restrict codes, float scale, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = block8_decode<is_signed>(codes[i], scale);
}

template <bool is_signed>
MPX_INLINE float encode(const float* __restrict from, int64_t n, NoiseWords __restrict noise,
                        uint8_t* __restrict codes) {
  uint32_t rounded[kBlock8], largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, from[i]) & ~kFloatSign;
    rounded[i] =
        noise == nullptr ? block8_round(magnitude) : block8_round(magnitude, noise_half<is_signed>(noise[i]));
    largest = std::max(largest, rounded[i]);
  }
  const float scale = block8_scale<is_signed>(largest);
  if (!(scale > 0)) {
    std::memset(codes, 0, static_cast<size_t>(n));
    return scale;
  }
  const Block8Coder<is_signed> coder(scale);
  for (int64_t i = 0; i < n; ++i) {
    const auto half = static_cast<int32_t>(noise == nullptr ? 0x8000 : noise_half<is_signed>(noise[i]));
    codes[i] = coder.code(from[i], rounded[i], static_cast<float>(half) * 0x1p-16F);
  }
  return scale;
}

}  // namespace

MPX_HALF_CLONES void bf16_to_floats(const uint16_t* __restrict from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = bf16_to_float(from[i]);
}
MPX_HALF_CLONES void f16_to_floats(const uint16_t* __restrict from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = f16_to_float(from[i]);
}
MPX_HALF_CLONES void floats_to_bf16(const float* __restrict from, int64_t n, uint16_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = float_to_bf16(from[i]);
}
MPX_HALF_CLONES void floats_to_bf16(const float* __restrict from, int64_t n, bool is_signed,
                                    NoiseWords __restrict noise, uint16_t* __restrict to) {
  if (noise == nullptr) {
    for (int64_t i = 0; i < n; ++i) to[i] = float_to_bf16(from[i]);
  } else if (is_signed) {
    for (int64_t i = 0; i < n; ++i) to[i] = float_to_bf16(from[i], noise_half<true>(noise[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = float_to_bf16(from[i], noise_half<false>(noise[i]));
  }
}
MPX_HALF_CLONES void floats_to_f16(const float* __restrict from, int64_t n, uint16_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = float_to_f16(from[i]);
}

MPX_HALF_CLONES void split_tile(const float* __restrict from, int64_t n, uint16_t* __restrict param,
                                uint16_t* __restrict remainder) {
  for (int64_t i = 0; i < n; ++i) {
    const SplitFloat split = split_float(from[i]);
    param[i] = split.param;
    remainder[i] = split.remainder;
  }
}
MPX_HALF_CLONES void join_tile(const uint16_t* __restrict param, const uint16_t* __restrict remainder, int64_t n,
                               float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = join_float(param[i], remainder[i]);
}

MPX_HALF_CLONES void decode_block8(const uint8_t* codes, float scale, int64_t n, bool is_signed, float* to) {
  is_signed ? decode<true>(codes, scale, n, to) : decode<false>(codes, scale, n, to);
}
MPX_HALF_CLONES float encode_block8(const float* from, int64_t n, bool is_signed, NoiseWords noise, uint8_t* codes) {
  return is_signed ? encode<true>(from, n, noise, codes) : encode<false>(from, n, noise, codes);
}

}  // namespace metroplex::kernels
