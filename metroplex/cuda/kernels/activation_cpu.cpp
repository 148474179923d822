#include <ATen/Parallel.h>

#include "cuda/kernels/activation.h"
#include "cuda/kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

constexpr double kSqrtHalf = 0.70710678118654752440, kInvSqrt2Pi = 0.39894228040143267794;
constexpr double kSqrt2OverPi = 0.79788456080286535588, kCubic = 0.044715;

template <class T>
MPX_INLINE T sigmoid(T x) {
  return T(1) / (T(1) + vector_exp(-x));
}

template <Activation kind, class T>
MPX_INLINE T value(T x) {
  if constexpr (kind == Activation::gelu) return T(0.5) * x * (T(1) + vector_erf(x * T(kSqrtHalf)));
  if constexpr (kind == Activation::gelu_tanh)
    return T(0.5) * x * (T(1) + vector_tanh(T(kSqrt2OverPi) * (x + T(kCubic) * x * x * x)));
  if constexpr (kind == Activation::silu) return x * sigmoid(x);
  if constexpr (kind == Activation::relu) return x > 0 ? x : T(0);
  if constexpr (kind == Activation::squared_relu) return x > 0 ? x * x : T(0);
}

template <Activation kind, class T>
MPX_INLINE T slope(T x) {
  if constexpr (kind == Activation::gelu) {
    return T(0.5) * (T(1) + vector_erf(x * T(kSqrtHalf))) + x * T(kInvSqrt2Pi) * vector_exp(T(-0.5) * x * x);
  }
  if constexpr (kind == Activation::gelu_tanh) {
    const T t = vector_tanh(T(kSqrt2OverPi) * (x + T(kCubic) * x * x * x));
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * T(kSqrt2OverPi) * (T(1) + T(3 * kCubic) * x * x);
  }
  if constexpr (kind == Activation::silu) {
    const T s = sigmoid(x);
    return s * (T(1) + x * (T(1) - s));
  }
  if constexpr (kind == Activation::relu) return x > 0 ? T(1) : T(0);
  if constexpr (kind == Activation::squared_relu) return x > 0 ? T(2) * x : T(0);
}

template <Activation kind, bool gated, class T>
MPX_INLINE void forward_row(T* __restrict x, const T* __restrict bias, T* __restrict out, int64_t width) {
  if (bias != nullptr) {
    for (int64_t i = 0; i < (gated ? 2 * width : width); ++i) x[i] += bias[i];
  }
  for (int64_t i = 0; i < width; ++i) out[i] = gated ? value<kind>(x[i]) * x[width + i] : value<kind>(x[i]);
}

template <Activation kind, bool gated, class T>
MPX_INLINE void backward_row(const T* __restrict dy, const T* __restrict x, T* __restrict dx, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    if (gated) {
      dx[i] = dy[i] * x[width + i] * slope<kind>(x[i]);
      dx[width + i] = dy[i] * value<kind>(x[i]);
    } else {
      dx[i] = dy[i] * slope<kind>(x[i]);
    }
  }
}

template <class T>
struct Operands {
  T *x, *out;  // forward: x in place, out; backward: out = dx
  const T *bias, *dy, *saved;
};

template <bool forward, Activation kind, bool gated, class T>
MPX_INLINE void rows_loop(const Operands<T>& o, int64_t width, int64_t begin, int64_t end) {
  const int64_t wide = gated ? 2 * width : width;
  for (int64_t row = begin; row < end; ++row) {
    if constexpr (forward) {
      forward_row<kind, gated>(o.x + row * wide, o.bias, o.out + row * width, width);
    } else {
      backward_row<kind, gated>(o.dy + row * width, o.saved + row * wide, o.out + row * wide, width);
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
    MPX_KIND(silu);
    MPX_KIND(relu);
    MPX_KIND(squared_relu);
  }
#undef MPX_KIND
}

// Not templates: the clones are made from these.
MPX_VECTOR_CLONES void forward_rows(const Operands<float>& o, const ActivationShape& s, int64_t b, int64_t e) {
  dispatch<true>(o, s, b, e);
}
MPX_VECTOR_CLONES void backward_rows(const Operands<float>& o, const ActivationShape& s, int64_t b, int64_t e) {
  dispatch<false>(o, s, b, e);
}
void forward_rows(const Operands<double>& o, const ActivationShape& s, int64_t b, int64_t e) {
  dispatch<true>(o, s, b, e);
}
void backward_rows(const Operands<double>& o, const ActivationShape& s, int64_t b, int64_t e) {
  dispatch<false>(o, s, b, e);
}

int64_t grain(const ActivationShape& shape) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
}

}  // namespace

template <class T>
void activation_forward(T* x, const T* bias, T* out, const ActivationShape& shape) {
  const Operands<T> o{x, out, bias, nullptr, nullptr};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { forward_rows(o, shape, begin, end); });
}

template <class T>
void activation_backward(const T* dy, const T* x, T* dx, const ActivationShape& shape) {
  const Operands<T> o{nullptr, dx, nullptr, dy, x};
  at::parallel_for(0, shape.rows, grain(shape),
                   [&](int64_t begin, int64_t end) { backward_rows(o, shape, begin, end); });
}

#define MPX_INSTANTIATE(T)                                                       \
  template void activation_forward<T>(T*, const T*, T*, const ActivationShape&); \
  template void activation_backward<T>(const T*, const T*, T*, const ActivationShape&)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::cuda::kernels
