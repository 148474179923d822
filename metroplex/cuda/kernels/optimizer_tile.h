// For CPU kernels: a tile is the 256 elements of one block of block8. Arrays stored in the type of the arithmetic are
// worked on where they lie, others through a buffer that stays in the first cache.
#pragma once

#include <algorithm>
#include <cstring>

#include "cuda/kernels/block8.h"

// MPX_VECTOR_CLONES, but with numbers of 8 and 16 bits in 512-bit vectors too.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define MPX_NARROW_CLONES __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define MPX_NARROW_CLONES
#endif

namespace metroplex::cuda::kernels {

constexpr int64_t kTile = kBlock8;

// 16 random bits for each of n elements lie in the low (first moments) or high half of words[i]; null: to the
// nearest.
using NoiseWords = const uint32_t*;
template <bool is_signed>
constexpr MPX_INLINE uint32_t noise_half(uint32_t word) {
  return is_signed ? word & 0xFFFF : word >> 16;
}

MPX_INLINE void bf16_to_floats(const uint16_t* __restrict from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = bf16_to_float(from[i]);
}
MPX_INLINE void f16_to_floats(const uint16_t* __restrict from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = f16_to_float(from[i]);
}
MPX_INLINE void floats_to_bf16(const float* __restrict from, int64_t n, uint16_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = float_to_bf16(from[i]);
}
template <bool is_signed>
MPX_INLINE void floats_to_bf16(const float* __restrict from, int64_t n, NoiseWords __restrict noise,
                               uint16_t* __restrict to) {
  if (noise == nullptr) return floats_to_bf16(from, n, to);
  for (int64_t i = 0; i < n; ++i) to[i] = float_to_bf16(from[i], noise_half<is_signed>(noise[i]));
}
MPX_INLINE void floats_to_f16(const float* __restrict from, int64_t n, uint16_t* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = float_to_f16(from[i]);
}

MPX_INLINE void split_tile(const float* __restrict from, int64_t n, uint16_t* __restrict param,
                           uint16_t* __restrict remainder) {
  for (int64_t i = 0; i < n; ++i) {
    const SplitFloat split = split_float(from[i]);
    param[i] = split.param;
    remainder[i] = split.remainder;
  }
}
MPX_INLINE void join_tile(const uint16_t* __restrict param, const uint16_t* __restrict remainder, int64_t n,
                          float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = join_float(param[i], remainder[i]);
}

template <bool is_signed>
MPX_INLINE void decode_block8(const uint8_t* __restrict codes, float scale, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = block8_decode<is_signed>(codes[i], scale);
}

template <bool is_signed>
MPX_INLINE float encode_block8(const float* __restrict from, int64_t n, NoiseWords __restrict noise,
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

}  // namespace metroplex::cuda::kernels
