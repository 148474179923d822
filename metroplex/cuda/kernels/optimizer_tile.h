// For CPU kernels: a tile is the 256 elements of one block of block8. Arrays stored in the type of the arithmetic are
// worked on where they lie, others through a buffer that stays in the first cache.
#pragma once

#include "cuda/kernels/block8.h"

namespace metroplex::cuda::kernels {

constexpr int64_t kTile = kBlock8;

// 16 random bits for each of n elements lie in the low (first moments) or high half of words[i]; null: to the
// nearest.
using NoiseWords = const uint32_t*;

void bf16_to_floats(const uint16_t* from, int64_t n, float* to);
void f16_to_floats(const uint16_t* from, int64_t n, float* to);
void floats_to_bf16(const float* from, int64_t n, uint16_t* to);
void floats_to_bf16(const float* from, int64_t n, bool is_signed, NoiseWords noise, uint16_t* to);
void floats_to_f16(const float* from, int64_t n, uint16_t* to);

void split_tile(const float* from, int64_t n, uint16_t* param, uint16_t* remainder);
void join_tile(const uint16_t* param, const uint16_t* remainder, int64_t n, float* to);

// n <= kTile. What encode returns is the scale.
void decode_block8(const uint8_t* codes, float scale, int64_t n, bool is_signed, float* to);
float encode_block8(const float* from, int64_t n, bool is_signed, NoiseWords noise, uint8_t* codes);

}  // namespace metroplex::cuda::kernels
