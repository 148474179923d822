// For .cu files: 16 bytes of an array in one access.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/half.h"

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

// `count` neighbouring elements at once: one, or those of whole Packs.
template <class T, int64_t count>
struct Elements {
  Wide<T> values[count];

  __device__ void read(const T* from) {
    if constexpr (count == 1) {
      values[0] = load(*from);
    } else {
      for (int64_t i = 0; i < count; i += Pack<T>::kCount) {
        const Pack<T> pack = load_pack(from + i);
        for (int64_t l = 0; l < Pack<T>::kCount; ++l) values[i + l] = load(pack.values[l]);
      }
    }
  }
  __device__ void write(T* to) const {
    if constexpr (count == 1) {
      *to = store<T>(values[0]);
    } else {
      for (int64_t i = 0; i < count; i += Pack<T>::kCount) {
        Pack<T> pack;
        for (int64_t l = 0; l < Pack<T>::kCount; ++l) pack.values[l] = store<T>(values[i + l]);
        store_pack(to + i, pack);
      }
    }
  }
  // Adds what lies there in the wide type; nothing for null.
  __device__ void add(const Wide<T>* bias) {
    if (bias == nullptr) return;
    constexpr int64_t kOfPack = Pack<Wide<T>>::kCount;
    if constexpr (count == 1) {
      values[0] += *bias;
    } else {
      for (int64_t i = 0; i < count; i += kOfPack) {
        const Pack<Wide<T>> pack = load_pack(bias + i);
        for (int64_t l = 0; l < kOfPack; ++l) values[i + l] += pack.values[l];
      }
    }
  }
};

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
