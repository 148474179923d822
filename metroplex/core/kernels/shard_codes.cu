#include "kernels/shard_codes.h"

#include "kernels/launch.h"
#include "kernels/small_codes.h"

namespace metroplex::kernels {
namespace {

// Calls body(i) for the block's elements i of the shard; each warp handles every kWarps-th row.
template <class Body>
__device__ void for_elements(const ShardBlock& place, const Body& body) {
  for (int64_t row = threadIdx.x / kWarp; row < place.height; row += kWarps) {
    const ShardBlock::Range range = place.row(row);
    for (int64_t i = range.begin + threadIdx.x % kWarp; i < range.end; i += kWarp) body(i);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) magnitudes_kernel(Wide<T>* magnitudes, const T* x, ShardShape shape) {
  for (int64_t block = blockIdx.x; block < shape.blocks(); block += gridDim.x) {
    Wide<T> largest = 0;
    for_elements(shard_block(shape, block), [&](int64_t i) {
      const Wide<T> value = load(x[i]);
      largest = Max()(largest, value < 0 ? -value : value);
    });
    largest = block_reduce(largest, Max());
    if (threadIdx.x == 0) magnitudes[block] = largest;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_kernel(uint8_t* codes, Wide<T>* decode, const T* x, const Wide<T>* magnitudes, ShardShape shape) {
  const CodeForm form = code_form(shape.number);
  for (int64_t block = blockIdx.x; block < shape.blocks(); block += gridDim.x) {
    const CodeFactors<Wide<T>> by = code_factors(magnitudes[block], Wide<T>(0), shape.number, shape.factor);
    if (threadIdx.x == 0) decode[block] = by.decode;
    for_elements(shard_block(shape, block), [&](int64_t i) {
      codes[i] = small_code(static_cast<float>(round_small(load(x[i]) * by.encode, form.number)), form);
    });
  }
}

}  // namespace

template <class T>
void shard_magnitudes_cuda(Wide<T>* magnitudes, const T* x, const ShardShape& shape, CUstream_st* stream) {
  if (shape.blocks() == 0) return;
  launch_kernel("shard_magnitudes", magnitudes_kernel<T>, Grid{blocks_for_rows(shape.blocks()), kThreads, 0, stream},
                magnitudes, x, shape);
}

template <class T>
void encode_shard_cuda(uint8_t* codes, Wide<T>* decode, const T* x, const Wide<T>* magnitudes,
                       const ShardShape& shape, CUstream_st* stream) {
  if (shape.blocks() == 0) return;
  launch_kernel("encode_shard", encode_kernel<T>, Grid{blocks_for_rows(shape.blocks()), kThreads, 0, stream}, codes,
                decode, x, magnitudes, shape);
}

#define MPX_INSTANTIATE(T)                                                                     \
  template void shard_magnitudes_cuda<T>(Wide<T>*, const T*, const ShardShape&, CUstream_st*); \
  template void encode_shard_cuda<T>(uint8_t*, Wide<T>*, const T*, const Wide<T>*, const ShardShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
