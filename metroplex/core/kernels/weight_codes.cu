#include "kernels/launch.h"
#include "kernels/weight_codes.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {
namespace {

constexpr int64_t kCodesAtOnce = 8;  // codes of an 8-byte access

// A thread block encodes every gridDim.x-th block of 128 x 128 values.
template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_e4m3_kernel(uint8_t* codes, float* scales, const T* x, CodesShape shape) {
  const int64_t across = shape.column_blocks(), blocks = shape.matrices * shape.row_blocks() * across;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t down = block / across % shape.row_blocks(), row = down * kE4m3Block,
                  column = block % across * kE4m3Block,
                  begin = (block / across / shape.row_blocks() * shape.rows + row) * shape.columns + column;
    const int64_t rows = shape.rows - row < kE4m3Block ? shape.rows - row : kE4m3Block,
                  columns = shape.columns - column < kE4m3Block ? shape.columns - column : kE4m3Block;
    float magnitude = 0;
    for (int64_t i = threadIdx.x; i < rows * columns; i += kThreads) {
      const auto value = static_cast<float>(load(x[begin + i / columns * shape.columns + i % columns]));
      magnitude = Max{}(magnitude, value < 0 ? -value : value);
    }
    const float scale = e4m3_block_scale(block_reduce(magnitude, Max{}));
    if (threadIdx.x == 0) scales[block] = scale;
    for (int64_t i = threadIdx.x; i < rows * columns; i += kThreads) {
      const int64_t at = begin + i / columns * shape.columns + i % columns;
      codes[at] = encode_value(static_cast<float>(load(x[at])), scale, e4m3_code());
    }
  }
}

// The codes of `count` adjacent values, from one access.
template <int64_t count>
__device__ void read_codes(uint8_t* codes, const uint8_t* from) {
  if constexpr (count == kCodesAtOnce) {
    const uint64_t all = *reinterpret_cast<const uint64_t*>(from);
    for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(all >> (8 * i));
  } else {
    for (int64_t i = 0; i < count; ++i) codes[i] = from[i];
  }
}

// A thread decodes `count` adjacent values of a block.
template <class T, int64_t count>
__global__ void __launch_bounds__(kThreads)
    decode_e4m3_kernel(T* x, const uint8_t* codes, const float* scales, CodesShape shape) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < shape.values() / count; i += stride) {
    const int64_t at = i * count, row = at / shape.columns,
                  block = (row / shape.rows * shape.row_blocks() + row % shape.rows / kE4m3Block) *
                              shape.column_blocks() +
                          at % shape.columns / kE4m3Block;
    uint8_t own[count];
    read_codes<count>(own, codes + at);
    Elements<T, count> out;
    for (int64_t lane = 0; lane < count; ++lane)
      out.values[lane] = small_value(own[lane], e4m3_code()) * scales[block];
    out.write(x + at);
  }
}

// A thread encodes 16 values.
template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_e2m1_kernel(E2m1Codes out, const T* x, const Wide<T>* magnitudes, CodesShape shape) {
  const int64_t stride = int64_t{gridDim.x} * kThreads, first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t matrix = first; matrix < shape.matrices; matrix += stride)
    out.matrix_scales[matrix] = e2m1_matrix_scale(static_cast<float>(magnitudes[matrix]));
  for (int64_t block = first; block < shape.values() / kE2m1Block; block += stride) {
    const int64_t at = block * kE2m1Block;
    encode_e2m1_block(out.codes + at / 2, out.scales + block, x + at,
                      e2m1_matrix_scale(static_cast<float>(magnitudes[at / (shape.rows * shape.columns)])));
  }
}

// A thread decodes the 16 values of a block. `wide`: pointers are aligned to 16 bytes.
template <class T, bool wide>
__global__ void __launch_bounds__(kThreads) decode_e2m1_kernel(T* x, E2m1Codes in, CodesShape shape) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x; block < shape.values() / kE2m1Block;
       block += stride) {
    const int64_t at = block * kE2m1Block;
    const float scale =
        small_value(in.scales[block], e4m3_code()) * in.matrix_scales[at / (shape.rows * shape.columns)];
    uint8_t pairs[kE2m1Block / 2];
    if constexpr (wide) {
      read_codes<kE2m1Block / 2>(pairs, in.codes + at / 2);
    } else {
      for (int64_t i = 0; i < kE2m1Block / 2; ++i) pairs[i] = in.codes[at / 2 + i];
    }
    Elements<T, kE2m1Block> out;
    for (int64_t i = 0; i < kE2m1Block; ++i)
      out.values[i] = small_value(i % 2 == 0 ? pairs[i / 2] & 15U : pairs[i / 2] >> 4, e2m1_code()) * scale;
    if constexpr (wide) {
      out.write(x + at);
    } else {
      for (int64_t i = 0; i < kE2m1Block; ++i) x[at + i] = store<T>(out.values[i]);
    }
  }
}

}  // namespace

template <class T>
void encode_e4m3_cuda(uint8_t* codes, float* scales, const T* x, const CodesShape& shape, CUstream_st* stream) {
  if (shape.values() == 0) return;
  const int64_t blocks = shape.matrices * shape.row_blocks() * shape.column_blocks();
  launch_kernel("encode_e4m3", encode_e4m3_kernel<T>, Grid{blocks_for(blocks * kThreads), kThreads, 0, stream}, codes,
                scales, x, shape);
}

template <class T>
void decode_e4m3_cuda(T* x, const uint8_t* codes, const float* scales, const CodesShape& shape, CUstream_st* stream) {
  if (shape.values() == 0) return;
  const bool wide = shape.columns % kCodesAtOnce == 0 && aligned_for_packs(x, codes);
  const int64_t threads = wide ? shape.values() / kCodesAtOnce : shape.values();
  launch_kernel("decode_e4m3", wide ? decode_e4m3_kernel<T, kCodesAtOnce> : decode_e4m3_kernel<T, 1>,
                Grid{blocks_for(threads), kThreads, 0, stream}, x, codes, scales, shape);
}

template <class T>
void encode_e2m1_cuda(const E2m1Codes& out, const T* x, const Wide<T>* magnitudes, const CodesShape& shape,
                      CUstream_st* stream) {
  if (shape.matrices == 0) return;
  launch_kernel("encode_e2m1", encode_e2m1_kernel<T>,
                Grid{blocks_for(shape.values() / kE2m1Block + shape.matrices), kThreads, 0, stream}, out, x,
                magnitudes, shape);
}

template <class T>
void decode_e2m1_cuda(T* x, const E2m1Codes& in, const CodesShape& shape, CUstream_st* stream) {
  if (shape.values() == 0) return;
  const bool wide = aligned_for_packs(x, in.codes);
  launch_kernel("decode_e2m1", wide ? decode_e2m1_kernel<T, true> : decode_e2m1_kernel<T, false>,
                Grid{blocks_for(shape.values() / kE2m1Block), kThreads, 0, stream}, x, in, shape);
}

#define MPX_INSTANTIATE(T)                                                                                        \
  template void encode_e4m3_cuda<T>(uint8_t*, float*, const T*, const CodesShape&, CUstream_st*);                 \
  template void decode_e4m3_cuda<T>(T*, const uint8_t*, const float*, const CodesShape&, CUstream_st*);           \
  template void encode_e2m1_cuda<T>(const E2m1Codes&, const T*, const Wide<T>*, const CodesShape&, CUstream_st*); \
  template void decode_e2m1_cuda<T>(T*, const E2m1Codes&, const CodesShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);
#undef MPX_INSTANTIATE

}  // namespace metroplex::kernels
