#include "kernels/block8_store.h"
#include "kernels/block8.h"

namespace metroplex::kernels {
namespace {

template <bool is_signed>
__global__ void __launch_bounds__(kThreads) encode_kernel(const float* values, int64_t n, Block8Array to) {
  for (int64_t start = int64_t{blockIdx.x} * kThreads; start < n; start += int64_t{gridDim.x} * kThreads) {
    const int64_t i = start + threadIdx.x;
    store_block8<is_signed>(to, i, i < n, i < n ? values[i] : 0.0F, nullptr);
  }
}

template <class Body>
__global__ void __launch_bounds__(kThreads) for_each_kernel(int64_t n, Body body) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) body(i);
}

template <bool is_signed>
struct Decode {
  const uint8_t* codes;
  const float* scales;
  float* values;
  __device__ void operator()(int64_t i) const { values[i] = block8_decode<is_signed>(codes[i], scales[i / kBlock8]); }
};

struct Split {
  const float* values;
  uint16_t *param, *remainder;
  __device__ void operator()(int64_t i) const {
    const SplitFloat split = split_float(values[i]);
    param[i] = split.param;
    remainder[i] = split.remainder;
  }
};

struct Join {
  const uint16_t *param, *remainder;
  float* values;
  __device__ void operator()(int64_t i) const { values[i] = join_float(param[i], remainder[i]); }
};

template <class Body>
void for_each(int64_t n, const Body& body, const char* name, CUstream_st* stream) {
  if (n == 0) return;
  launch_kernel(name, for_each_kernel<Body>, Grid{blocks_for(n), kThreads, 0, stream}, n, body);
}

}  // namespace

void block8_encode_cuda(const float* values, int64_t n, bool is_signed, uint8_t* codes, float* scales,
                        CUstream_st* stream) {
  if (n == 0) return;
  const Block8Array to{codes, scales};
  if (is_signed) {
    launch_kernel("block8_encode", encode_kernel<true>, Grid{blocks_for(n), kThreads, 0, stream}, values, n, to);
  } else {
    launch_kernel("block8_encode", encode_kernel<false>, Grid{blocks_for(n), kThreads, 0, stream}, values, n, to);
  }
}

void block8_decode_cuda(const uint8_t* codes, const float* scales, int64_t n, bool is_signed, float* values,
                        CUstream_st* stream) {
  if (is_signed) {
    for_each(n, Decode<true>{codes, scales, values}, "block8_decode", stream);
  } else {
    for_each(n, Decode<false>{codes, scales, values}, "block8_decode", stream);
  }
}

void split_floats_cuda(const float* values, int64_t n, uint16_t* param, uint16_t* remainder, CUstream_st* stream) {
  for_each(n, Split{values, param, remainder}, "split_floats", stream);
}

void join_floats_cuda(const uint16_t* param, const uint16_t* remainder, int64_t n, float* values,
                      CUstream_st* stream) {
  for_each(n, Join{param, remainder, values}, "join_floats", stream);
}

}  // namespace metroplex::kernels
