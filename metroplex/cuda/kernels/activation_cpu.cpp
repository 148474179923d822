#include <ATen/Parallel.h>

#include "cuda/kernels/activation.h"
#include "cuda/kernels/vector_activation.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

template <Activation kind, class T>
MPX_INLINE T value(T x) {
  return activation_value<kind, VectorMath>(x);
}
template <Activation kind, class T>
MPX_INLINE T slope(T x) {
  return activation_slope<kind, VectorMath>(x);
}

template <Activation kind, bool gated, class T>
MPX_INLINE void forward_row(T* __restrict x, const Wide<T>* __restrict bias, T* __restrict out, int64_t width) {
  if constexpr (kIsHalf<T>) {
    if (bias == nullptr) {
      for (int64_t i = 0; i < width; ++i) {
        const float y = value<kind>(load(x[i]));
        out[i] = store<T>(gated ? y * load(x[width + i]) : y);
      }
      return;
    }
    for (int64_t i = 0; i < width; ++i) {
      const float y = value<kind>(load(x[i]) + bias[i]);
      out[i] = store<T>(gated ? y * (load(x[width + i]) + bias[width + i]) : y);
    }
  } else {
    if (bias != nullptr) {
      for (int64_t i = 0; i < (gated ? 2 * width : width); ++i) x[i] += bias[i];
    }
    for (int64_t i = 0; i < width; ++i) out[i] = gated ? value<kind>(x[i]) * x[width + i] : value<kind>(x[i]);
  }
}

// `x` and `up` are in arithmetic types.
template <Activation kind, bool gated, class T, class A>
MPX_INLINE void gradient(A dy, A x, A up, T* __restrict dx, int64_t i, int64_t width) {
  if constexpr (gated) {
    dx[i] = store<T>(dy * up * slope<kind>(x));
    dx[width + i] = store<T>(dy * value<kind>(x));
  } else {
    dx[i] = store<T>(dy * slope<kind>(x));
  }
}

template <Activation kind, bool gated, class T>
MPX_INLINE void backward_row(const T* __restrict dy, const T* __restrict x, const Wide<T>* __restrict bias,
                             T* __restrict dx, int64_t width) {
  if (kIsHalf<T> && bias != nullptr) {
    for (int64_t i = 0; i < width; ++i) {
      const Wide<T> up = gated ? load(x[width + i]) + bias[width + i] : Wide<T>(0);
      gradient<kind, gated>(load(dy[i]), load(x[i]) + bias[i], up, dx, i, width);
    }
  } else {
    for (int64_t i = 0; i < width; ++i) {
      const Wide<T> up = gated ? load(x[width + i]) : Wide<T>(0);
      gradient<kind, gated>(load(dy[i]), load(x[i]), up, dx, i, width);
    }
  }
}

template <class T>
struct Operands {
  T *x, *out;  // forward: x in place, out; backward: out = dx
  const Wide<T>* bias;
  const T *dy, *saved;
};

template <bool forward, Activation kind, bool gated, class T>
MPX_INLINE void rows_loop(const Operands<T>& o, int64_t width, int64_t begin, int64_t end) {
  const int64_t wide = gated ? 2 * width : width;
  for (int64_t row = begin; row < end; ++row) {
    if constexpr (forward) {
      forward_row<kind, gated>(o.x + row * wide, o.bias, o.out + row * width, width);
    } else {
      backward_row<kind, gated>(o.dy + row * width, o.saved + row * wide, o.bias, o.out + row * wide, width);
    }
  }
}

template <bool forward, class T>
MPX_INLINE void dispatch(const Operands<T>& o, const ActivationShape& shape, int64_t begin, int64_t end) {
#define MPX_KIND(kind)                                                                          \
  case Activation::kind:                                                                        \
    return shape.gated ? rows_loop<forward, Activation::kind, true>(o, shape.width, begin, end) \
                       : rows_loop<forward, Activation::kind, false>(o, shape.width, begin, end)
  switch (shape.kind) {
    MPX_KIND(gelu);
    MPX_KIND(gelu_tanh);
    MPX_KIND(quick_gelu);
    MPX_KIND(silu);
    MPX_KIND(relu);
    MPX_KIND(squared_relu);
  }
#undef MPX_KIND
}

// Not templates: the clones are made from these.
#define MPX_ROWS(clones, T)                                                                         \
  clones void forward_rows(const Operands<T>& o, const ActivationShape& s, int64_t b, int64_t e) {  \
    dispatch<true>(o, s, b, e);                                                                     \
  }                                                                                                 \
  clones void backward_rows(const Operands<T>& o, const ActivationShape& s, int64_t b, int64_t e) { \
    dispatch<false>(o, s, b, e);                                                                    \
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
void activation_forward(T* x, const Wide<T>* bias, T* out, const ActivationShape& shape) {
  const Operands<T> o{x, out, bias, nullptr, nullptr};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { forward_rows(o, shape, begin, end); });
}

template <class T>
void activation_backward(const T* dy, const T* x, const Wide<T>* bias, T* dx, const ActivationShape& shape) {
  const Operands<T> o{nullptr, dx, bias, dy, x};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { backward_rows(o, shape, begin, end); });
}

#define MPX_INSTANTIATE(T)                                                             \
  template void activation_forward<T>(T*, const Wide<T>*, T*, const ActivationShape&); \
  template void activation_backward<T>(const T*, const T*, const Wide<T>*, T*, const ActivationShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels
