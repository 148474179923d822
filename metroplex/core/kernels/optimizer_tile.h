// For CPU kernels: a tile is the 256 elements of one block of block8. Arrays in the arithmetic type are updated in
// place; other types are converted through a buffer in the L1 cache.
#pragma once

#include "kernels/block8.h"

namespace metroplex::kernels {

constexpr int64_t kTile = kBlock8;

// The low half (first moments) or high half of words[i] has 16 random bits for element i; null: rounds to nearest.
using NoiseWords = const uint32_t*;

void bf16_to_floats(const uint16_t* from, int64_t n, float* to);
void f16_to_floats(const uint16_t* from, int64_t n, float* to);
void floats_to_bf16(const float* from, int64_t n, uint16_t* to);
void floats_to_bf16(const float* from, int64_t n, bool is_signed, NoiseWords noise, uint16_t* to);
void floats_to_f16(const float* from, int64_t n, uint16_t* to);

void split_tile(const float* from, int64_t n, uint16_t* param, uint16_t* remainder);
void join_tile(const uint16_t* param, const uint16_t* remainder, int64_t n, float* to);

// Require n <= kTile. encode_block8() returns the scale.
void decode_block8(const uint8_t* codes, float scale, int64_t n, bool is_signed, float* to);
float encode_block8(const float* from, int64_t n, bool is_signed, NoiseWords noise, uint8_t* codes);

}  // namespace metroplex::kernels
