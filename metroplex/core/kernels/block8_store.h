// For .cu files: a thread block writes one block of block8, one element per thread.
#pragma once

#include <bit>

#include "kernels/block8.h"
#include "kernels/launch.h"

namespace metroplex::kernels {

static_assert(kThreads == kBlock8, "a thread block works on one block of block8 at a time");

// Returns the maximum over the thread block. Every thread must call it.
inline __device__ uint32_t block_max(uint32_t value) {
  constexpr unsigned kWarps = kThreads / 32;
  __shared__ uint32_t of_warp[kWarps];
  value = __reduce_max_sync(0xFFFFFFFFU, value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned w = 0; w < kWarps; ++w) value = value > of_warp[w] ? value : of_warp[w];
  __syncthreads();  // before of_warp is overwritten
  return value;
}

struct Block8Array {
  uint8_t* codes;
  float* scales;
};
// Writes element i of one block; all threads of a thread block must call it, even those not `inside`. `noise` points
// to 16 random bits; null: rounds to nearest.
template <bool is_signed>
__device__ void store_block8(const Block8Array& to, int64_t i, bool inside, float x, const uint32_t* noise) {
  const uint32_t magnitude = inside ? std::bit_cast<uint32_t>(x) & ~kFloatSign : 0;
  const uint32_t rounded = noise == nullptr || !inside ? block8_round(magnitude) : block8_round(magnitude, *noise);
  const float scale = block8_scale<is_signed>(block_max(rounded));
  if (threadIdx.x == 0) to.scales[i / kBlock8] = scale;
  if (!inside) return;
  const float threshold = noise == nullptr ? 0.5F : static_cast<float>(*noise) * 0x1p-16F;
  to.codes[i] = scale > 0 ? Block8Coder<is_signed>(scale).code(x, rounded, threshold) : uint8_t{0};
}

}  // namespace metroplex::kernels
