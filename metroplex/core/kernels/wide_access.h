// For .cu files: 16-byte array accesses.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/divided.h"
#include "kernels/half.h"

namespace metroplex::kernels {

constexpr int64_t kWideBytes = 16;

template <class T>
struct alignas(kWideBytes) Pack {
  static constexpr int64_t kCount = kWideBytes / static_cast<int64_t>(sizeof(T));
  T values[kCount];
};

// Returns whether arrays are aligned to 16 bytes; null pointers are.
template <class... Pointers>
bool aligned_for_packs(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % kWideBytes == 0) && ...);
}

template <class T>
__device__ Pack<T> load_pack(const T* from) {
  return __builtin_bit_cast(Pack<T>, *reinterpret_cast<const uint4*>(from));
}
// Converts the elements of a pack. bf16 pairs are converted by 32-bit words, with one operation per element instead
// of two.
template <class T>
__device__ void unpack(const Pack<T>& pack, Wide<T>* values) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const auto words = __builtin_bit_cast(Pack<uint32_t>, pack);
    for (int64_t i = 0; i < words.kCount; ++i) {
      values[2 * i] = __builtin_bit_cast(float, words.values[i] << 16);
      values[2 * i + 1] = __builtin_bit_cast(float, words.values[i] & 0xFFFF0000U);
    }
  } else {
    for (int64_t i = 0; i < pack.kCount; ++i) values[i] = load(pack.values[i]);
  }
}
template <class T>
__device__ void store_pack(T* to, const Pack<T>& pack) {
  const auto bits = __builtin_bit_cast(uint4, pack);
#ifdef METROPLEX_KERNELS_ON_HOST
  *reinterpret_cast<uint4*>(to) = bits;
#else  // nvcc splits an assignment into element stores and does not always merge them
  asm volatile("st.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
               : "memory");
#endif
}

// `count` adjacent elements in one access: a single one, or whole Packs.
template <class T, int64_t count>
struct Elements {
  Wide<T> values[count];

  __device__ void read(const T* from) {
    if constexpr (count == 1) {
      values[0] = load(*from);
    } else {
      for (int64_t i = 0; i < count; i += Pack<T>::kCount) unpack(load_pack(from + i), values + i);
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
  // Adds the elements at `from`; no-op if null.
  __device__ void add(const T* from) {
    if (from == nullptr) return;
    Elements more;
    more.read(from);
    for (int64_t i = 0; i < count; ++i) values[i] += more.values[i];
  }
};

}  // namespace metroplex::kernels
