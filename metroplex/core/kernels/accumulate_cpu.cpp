#include <ATen/Parallel.h>

#include "kernels/accumulate.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class T>
MPX_INLINE void add_loop(float* __restrict out, const T* __restrict x, int64_t n, bool adds) {
  if (adds) {
    for (int64_t i = 0; i < n; ++i) out[i] += load(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = load(x[i]);
  }
}

MPX_HALF_CLONES void add_row(float* out, const Bf16* x, int64_t n, bool adds) { add_loop(out, x, n, adds); }
MPX_HALF_CLONES void add_row(float* out, const F16* x, int64_t n, bool adds) { add_loop(out, x, n, adds); }

}  // namespace

template <class T>
void add_elements(float* out, const T* x, int64_t n, bool adds) {
  at::parallel_for(0, n, 32768,
                   [&](int64_t begin, int64_t end) { add_row(out + begin, x + begin, end - begin, adds); });
}

#define MPX_INSTANTIATE(T) template void add_elements<T>(float*, const T*, int64_t, bool)
MPX_INSTANTIATE(Bf16);
MPX_INSTANTIATE(F16);

}  // namespace metroplex::kernels
