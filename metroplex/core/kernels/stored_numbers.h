// For .cu files: access to adjacent elements of an array whose type is a Number, either one or whole Packs.
#pragma once

#include "kernels/number.h"
#include "kernels/wide_access.h"

namespace metroplex::kernels {

// Elements per thread if arrays are aligned to 16 bytes: 16 bytes of 16-bit numbers.
constexpr int64_t kAtOnce = kWideBytes / 2;

template <int64_t count, class S>
__device__ void read_stored(const S* from, S* to) {
  if constexpr (count == 1) {
    *to = *from;
  } else {
    for (int64_t i = 0; i < count; i += Pack<S>::kCount) {
      const Pack<S> pack = load_pack(from + i);
      for (int64_t l = 0; l < Pack<S>::kCount; ++l) to[i + l] = pack.values[l];
    }
  }
}
template <int64_t count, class S>
__device__ void write_stored(S* to, const S* from) {
  if constexpr (count == 1) {
    *to = *from;
  } else {
    for (int64_t i = 0; i < count; i += Pack<S>::kCount) {
      Pack<S> pack;
      for (int64_t l = 0; l < Pack<S>::kCount; ++l) pack.values[l] = from[i + l];
      store_pack(to + i, pack);
    }
  }
}

// Loads elements [i, i + count) of type f64, f32, bf16 or f16.
template <int64_t count, class S, class T>
__device__ void load_stored_as(const S* from, T* to) {
  S stored[count];
  read_stored<count>(from, stored);
  for (int64_t l = 0; l < count; ++l) to[l] = load(stored[l]);
}
template <int64_t count, class T>
__device__ void load_stored(const void* data, Number number, int64_t i, T* to) {
  if constexpr (sizeof(T) == sizeof(double)) {
    if (number == Number::f64) return load_stored_as<count>(static_cast<const double*>(data) + i, to);
  }
  if (number == Number::f32) return load_stored_as<count>(static_cast<const float*>(data) + i, to);
  if (number == Number::bf16) return load_stored_as<count>(static_cast<const Bf16*>(data) + i, to);
  load_stored_as<count>(static_cast<const F16*>(data) + i, to);
}

}  // namespace metroplex::kernels
