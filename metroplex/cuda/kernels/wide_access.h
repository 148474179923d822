// For .cu files: 16 bytes of an array in one access.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace metroplex::cuda::kernels {

constexpr int64_t kWideBytes = 16;

template <class T>
struct alignas(kWideBytes) Pack {
  static constexpr int64_t kCount = kWideBytes / static_cast<int64_t>(sizeof(T));
  T values[kCount];
};

// Whether arrays begin at multiples of 16 bytes; null does.
template <class... Pointers>
bool aligned_for_packs(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % kWideBytes == 0) && ...);
}

template <class T>
__device__ Pack<T> load_pack(const T* from) {
  return __builtin_bit_cast(Pack<T>, *reinterpret_cast<const uint4*>(from));
}
template <class T>
__device__ void store_pack(T* to, const Pack<T>& pack) {
  *reinterpret_cast<uint4*>(to) = __builtin_bit_cast(uint4, pack);
}

// a / b and its remainder, for 0 <= a and 0 < b: in 32 bits where both fit, which a GPU does several times as fast.
struct Divided {
  int64_t quotient, remainder;
};
__device__ inline Divided divided(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) {
    const auto small_a = static_cast<uint32_t>(a), small_b = static_cast<uint32_t>(b);
    const uint32_t quotient = small_a / small_b;
    return {quotient, small_a - quotient * small_b};
  }
  return {a / b, a % b};
}

}  // namespace metroplex::cuda::kernels
