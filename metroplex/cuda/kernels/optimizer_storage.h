// Whole arrays in and out of the forms that take fewer bits than fp32, for checkpoints, which store fp32. Encoding
// what was decoded gives the same bits. On the CPU; nothing here is random.
#pragma once

#include <cstdint>

namespace metroplex::cuda::kernels {

// codes [n], scales [block8_scales(n)]. is_signed: a first moment; else values are not negative. See block8.h.
void block8_encode(const float* values, int64_t n, bool is_signed, uint8_t* codes, float* scales);
void block8_decode(const uint8_t* codes, const float* scales, int64_t n, bool is_signed, float* values);

// fp32 as bf16 parameter and remainder, see split_float.
void split_floats(const float* values, int64_t n, uint16_t* param, uint16_t* remainder);
void join_floats(const uint16_t* param, const uint16_t* remainder, int64_t n, float* values);

}  // namespace metroplex::cuda::kernels
