#include "kernels/launch.h"
#include "kernels/row_codes.h"

namespace metroplex::kernels {
namespace {

static_assert(kRowBlock == kWarp);

// A warp encodes every n-th block of 32 values.
template <class T>
__global__ void __launch_bounds__(kThreads) encode_rows_kernel(uint8_t* codes, const T* x, RowCodesShape shape) {
  using W = Wide<T>;
  const int64_t lane = threadIdx.x % kWarp, warps = int64_t{gridDim.x} * kWarps;
  for (int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; block < shape.rows * shape.row_blocks();
       block += warps) {
    const int64_t row = block / shape.row_blocks(), of_row = block % shape.row_blocks();
    const W value = load(x[block * kRowBlock + lane]);
    const W factor = row_block_factor(warp_reduce(Max{}(W(0), value < 0 ? -value : value), Max{}));
    uint8_t* const out = codes + row * shape.row_bytes();
    out[of_row * kRowBlock + lane] = row_code(value, factor);
    if (lane == 0) out[shape.columns + of_row] = row_scale_code(factor);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) decode_rows_kernel(T* x, const uint8_t* codes, RowCodesShape shape) {
  using W = Wide<T>;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < shape.rows * shape.columns; i += stride) {
    const int64_t column = i % shape.columns;
    const uint8_t* const in = codes + i / shape.columns * shape.row_bytes();
    const float scale = row_scale(in[shape.columns + column / kRowBlock]);
    x[i] = store<T>(static_cast<W>(small_value(in[column], e4m3_code())) * static_cast<W>(scale));
  }
}

}  // namespace

template <class T>
void encode_rows_cuda(uint8_t* codes, const T* x, const RowCodesShape& shape, CUstream_st* stream) {
  if (shape.rows * shape.columns == 0) return;
  launch_kernel("encode_rows", encode_rows_kernel<T>,
                Grid{blocks_for(shape.rows * shape.columns), kThreads, 0, stream}, codes, x, shape);
}

template <class T>
void decode_rows_cuda(T* x, const uint8_t* codes, const RowCodesShape& shape, CUstream_st* stream) {
  if (shape.rows * shape.columns == 0) return;
  launch_kernel("decode_rows", decode_rows_kernel<T>,
                Grid{blocks_for(shape.rows * shape.columns), kThreads, 0, stream}, x, codes, shape);
}

#define MPX_INSTANTIATE(T)                                                                   \
  template void encode_rows_cuda<T>(uint8_t*, const T*, const RowCodesShape&, CUstream_st*); \
  template void decode_rows_cuda<T>(T*, const uint8_t*, const RowCodesShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);
#undef MPX_INSTANTIATE

}  // namespace metroplex::kernels
