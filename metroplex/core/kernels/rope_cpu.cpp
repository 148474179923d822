#include <ATen/Parallel.h>

#include "kernels/rope.h"
#include "kernels/rope_rows.h"
#include "kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class T>
struct Operands {
  T* x;
  const Wide<T>*cos, *sin;
  Wide<T> sign;
};

template <class T>
MPX_INLINE void rows_loop(const Operands<T>& operands, const RopeShape& shape, int64_t begin, int64_t end) {
  const int64_t half = shape.rotary / 2;
  for (int64_t row = begin; row < end; ++row) {
    const Wide<T>* __restrict cos = operands.cos + row * half;
    const Wide<T>* __restrict sin = operands.sin + row * half;
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        T* const first = operands.x + row * shape.stride_s + b * shape.stride_b + head * shape.stride_head;
        rotate_head(static_cast<const T*>(first), first, cos, sin, operands.sign, half, shape.interleaved);
      }
    }
  }
}

#define MPX_ROWS(replicas, T)                                                                         \
  replicas void run_rows(const Operands<T>& operands, const RopeShape& shape, int64_t b, int64_t e) { \
    rows_loop(operands, shape, b, e);                                                                 \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float)
MPX_ROWS(MPX_VECTOR_CLONES, double)
MPX_ROWS(MPX_HALF_CLONES, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16)
#undef MPX_ROWS

}  // namespace

template <class T>
void rope(T* x, const Wide<T>* cos, const Wide<T>* sin, int direction, const RopeShape& shape) {
  const Operands<T> operands{x, cos, sin, static_cast<Wide<T>>(direction)};
  const int64_t per_row = std::max<int64_t>(1, shape.batch * shape.heads * shape.rotary);
  at::parallel_for(0, shape.sequence, std::max<int64_t>(1, 16384 / per_row),
                   [&](int64_t begin, int64_t end) { run_rows(operands, shape, begin, end); });
}

#define MPX_INSTANTIATE(T) template void rope<T>(T*, const Wide<T>*, const Wide<T>*, int, const RopeShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
