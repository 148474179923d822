#include <ATen/Parallel.h>

#include "kernels/activation_rows.h"
#include "kernels/column_sums.h"
#include "kernels/wide_row.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class T>
struct Operands {
  T *x, *out;  // forward: x is overwritten; backward: out is dx
  const Wide<T>* bias;
  const T *dy, *saved;
};
template <class T>
struct Buffers {
  alignas(64) Wide<T> x[kActivationChunk], up[kActivationChunk], y[kActivationChunk], slope[kActivationChunk];
  alignas(64) Wide<T> gate[kActivationChunk], shifted[kActivationChunk];  // after UnitLimits
};

int64_t width_of_x(const ActivationShape& shape) { return shape.gated ? 2 * shape.width : shape.width; }

template <class T>
MPX_INLINE const Wide<T>* at_or_null(const Wide<T>* bias, int64_t at) {
  return kIsHalf<T> && bias != nullptr ? bias + at : nullptr;
}

template <class T>
MPX_INLINE void forward_row(T* x, const Wide<T>* bias, T* __restrict out, const ActivationShape& shape) {
  const int64_t width = shape.width;
  if constexpr (!kIsHalf<T>) {
    if (bias != nullptr) {
      for (int64_t i = 0; i < width_of_x(shape); ++i) x[i] += bias[i];
    }
  }
  Buffers<T> buffers;
  for_chunks(width, [&](int64_t at, int64_t n) {
    const Wide<T>* const gate = with_bias(x + at, at_or_null<T>(bias, at), n, buffers.x);
    activation_values(shape.kind, limited_gate(shape.limits, gate, n, buffers.gate), n, buffers.y);
    if (shape.gated) {
      const Wide<T>* const up =
          limited_up(shape.limits, with_bias(x + width + at, at_or_null<T>(bias, width + at), n, buffers.up), n,
                     buffers.shifted);
      for (int64_t i = 0; i < n; ++i) out[at + i] = store<T>(buffers.y[i] * up[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[at + i] = store<T>(buffers.y[i]);
    }
  });
}

template <class T>
MPX_INLINE void backward_row(const T* __restrict dy, const T* x, const Wide<T>* bias, T* __restrict dx,
                             const ActivationShape& shape) {
  const int64_t width = shape.width;
  Buffers<T> buffers;
  for_chunks(width, [&](int64_t at, int64_t n) {
    const Wide<T>* const gate = with_bias(x + at, at_or_null<T>(bias, at), n, buffers.x);
    activation_slopes(shape.kind, limited_gate(shape.limits, gate, n, buffers.gate), n, buffers.y, buffers.slope);
    if (shape.gated) {
      const Wide<T>* const raw = with_bias(x + width + at, at_or_null<T>(bias, width + at), n, buffers.up);
      const Wide<T>* const up = limited_up(shape.limits, raw, n, buffers.shifted);
      if (shape.limits.any()) {
        for (int64_t i = 0; i < n; ++i) {
          buffers.slope[i] *= shape.limits.gate_slope(gate[i]);
          buffers.y[i] *= shape.limits.up_slope(raw[i]);
        }
      }
      for (int64_t i = 0; i < n; ++i) {
        const Wide<T> g = load(dy[at + i]);
        dx[at + i] = store<T>(g * up[i] * buffers.slope[i]);
        dx[width + at + i] = store<T>(g * buffers.y[i]);
      }
    } else {
      for (int64_t i = 0; i < n; ++i) dx[at + i] = store<T>(load(dy[at + i]) * buffers.slope[i]);
    }
  });
}

#define MPX_ROWS(replicas, T)                                                                           \
  replicas void forward_rows(const Operands<T>& operands, const ActivationShape& shape, int64_t begin,  \
                             int64_t end) {                                                             \
    const int64_t wide = width_of_x(shape);                                                             \
    for (int64_t row = begin; row < end; ++row)                                                         \
      forward_row<T>(operands.x + row * wide, operands.bias, operands.out + row * shape.width, shape);  \
  }                                                                                                     \
  replicas void backward_rows(const Operands<T>& operands, const ActivationShape& shape, int64_t begin, \
                              int64_t end) {                                                            \
    const int64_t wide = width_of_x(shape);                                                             \
    for (int64_t row = begin; row < end; ++row) {                                                       \
      backward_row<T>(operands.dy + row * shape.width, operands.saved + row * wide, operands.bias,      \
                      operands.out + row * wide, shape);                                                \
    }                                                                                                   \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float)
MPX_ROWS(MPX_HALF_CLONES, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16)
MPX_ROWS(, double)
#undef MPX_ROWS

int64_t grain(const ActivationShape& shape) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
}

}  // namespace

template <class T>
void activation_forward(T* x, const T* bias, T* out, const ActivationShape& shape) {
  const WideRow<T> wide(bias, width_of_x(shape));
  const Operands<T> operands{x, out, wide.data(), nullptr, nullptr};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { forward_rows(operands, shape, begin, end); });
}

template <class T>
void activation_backward(const T* dy, const T* x, const T* bias, T* dx, Wide<T>* lines,
                         const ActivationShape& shape) {
  const WideRow<T> wide(bias, width_of_x(shape));
  const Operands<T> operands{nullptr, dx, wide.data(), dy, x};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { backward_rows(operands, shape, begin, end); });
  if (lines != nullptr) column_sums<T>(lines, dx, {shape.rows, shape.width, shape.width});
}

#define MPX_INSTANTIATE(T)                                                       \
  template void activation_forward<T>(T*, const T*, T*, const ActivationShape&); \
  template void activation_backward<T>(const T*, const T*, const T*, T*, Wide<T>*, const ActivationShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
