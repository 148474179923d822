#include <ATen/Parallel.h>

#include "cuda/kernels/rope.h"
#include "cuda/kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

template <class T>
struct Operands {
  T* x;
  const T *cos, *sin;
  T sign;
};

template <class T>
MPX_INLINE void rows_loop(const Operands<T>& o, const RopeShape& s, int64_t begin, int64_t end) {
  const int64_t half = s.rotary / 2;
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict cos = o.cos + row * half;
    const T* __restrict sin = o.sin + row * half;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t head = 0; head < s.heads; ++head) {
        T* __restrict low = o.x + row * s.stride_s + b * s.stride_b + head * s.stride_head;
        T* __restrict high = low + half;
        for (int64_t i = 0; i < half; ++i) {
          const T a = low[i], c = high[i], turn = o.sign * sin[i];
          low[i] = a * cos[i] - c * turn;
          high[i] = c * cos[i] + a * turn;
        }
      }
    }
  }
}

MPX_VECTOR_CLONES void run_rows(const Operands<float>& o, const RopeShape& s, int64_t b, int64_t e) {
  rows_loop(o, s, b, e);
}
MPX_VECTOR_CLONES void run_rows(const Operands<double>& o, const RopeShape& s, int64_t b, int64_t e) {
  rows_loop(o, s, b, e);
}

}  // namespace

template <class T>
void rope(T* x, const T* cos, const T* sin, int direction, const RopeShape& shape) {
  const Operands<T> o{x, cos, sin, static_cast<T>(direction)};
  const int64_t per_row = std::max<int64_t>(1, shape.batch * shape.heads * shape.rotary);
  at::parallel_for(0, shape.sequence, std::max<int64_t>(1, 16384 / per_row),
                   [&](int64_t begin, int64_t end) { run_rows(o, shape, begin, end); });
}

template void rope<float>(float*, const float*, const float*, int, const RopeShape&);
template void rope<double>(double*, const double*, const double*, int, const RopeShape&);

}  // namespace metroplex::cuda::kernels
