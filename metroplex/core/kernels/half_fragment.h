// For .cu files: fragments of half types for tensor cores.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <type_traits>

namespace metroplex::kernels {

// wmma::load_matrix_sync from shared memory. nvcc 13 does not detect that a bf16 tile is in shared memory, and would
// read it word by word.
template <class Use, int m, int n, int k, class T, class Layout>
__device__ void load_fragment(nvcuda::wmma::fragment<Use, m, n, k, T, Layout>& to, const T* from, unsigned pitch) {
#ifndef METROPLEX_KERNELS_ON_HOST
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    static_assert(m == 16 && n == 16 && k == 16 && sizeof(to.x) == 16);
    auto* const words = reinterpret_cast<unsigned*>(to.x);
    const auto at = static_cast<unsigned>(__cvta_generic_to_shared(from));
#define MPX_LOAD(use, layout)                                                                                \
  asm volatile("wmma.load." use ".sync.aligned." layout ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;" \
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])                              \
               : "r"(at), "r"(pitch)                                                                         \
               : "memory")
    constexpr bool kA = std::is_same_v<Use, nvcuda::wmma::matrix_a>;
    constexpr bool kRow = std::is_same_v<Layout, nvcuda::wmma::row_major>;
    if constexpr (kA && kRow) {
      MPX_LOAD("a", "row");
    } else if constexpr (kA) {
      MPX_LOAD("a", "col");
    } else if constexpr (kRow) {
      MPX_LOAD("b", "row");
    } else {
      MPX_LOAD("b", "col");
    }
#undef MPX_LOAD
    return;
  }
#endif
  nvcuda::wmma::load_matrix_sync(to, from, pitch);
}

}  // namespace metroplex::kernels
