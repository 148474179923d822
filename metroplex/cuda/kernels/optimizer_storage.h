// Whole arrays in and out of the forms that take fewer bits than fp32, for checkpoints, which store fp32. Encoding
// what was decoded gives the same bits. Nothing here is random, so the CPU and a GPU give the same bits too.
#pragma once

#include <cstdint>

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

// codes [n], scales [block8_scales(n)]. is_signed: a first moment; else values are not negative. See block8.h.
void block8_encode(const float* values, int64_t n, bool is_signed, uint8_t* codes, float* scales);
void block8_decode(const uint8_t* codes, const float* scales, int64_t n, bool is_signed, float* values);

// fp32 as bf16 parameter and remainder, see split_float.
void split_floats(const float* values, int64_t n, uint16_t* param, uint16_t* remainder);
void join_floats(const uint16_t* param, const uint16_t* remainder, int64_t n, float* values);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. base::Error("cuda", ...) when nothing was
// launched.
void block8_encode_cuda(const float* values, int64_t n, bool is_signed, uint8_t* codes, float* scales,
                        CUstream_st* stream);
void block8_decode_cuda(const uint8_t* codes, const float* scales, int64_t n, bool is_signed, float* values,
                        CUstream_st* stream);
void split_floats_cuda(const float* values, int64_t n, uint16_t* param, uint16_t* remainder, CUstream_st* stream);
void join_floats_cuda(const uint16_t* param, const uint16_t* remainder, int64_t n, float* values,
                      CUstream_st* stream);

}  // namespace metroplex::cuda::kernels
