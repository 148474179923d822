#include "cuda/kernels/expert_spans.h"
#include "cuda/kernels/vector_activation.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

// Rows of one expert.
template <class T>
struct Operands {
  const T *dy, *x, *bias;
  const Wide<T>* probs;
  T* out;  // dx in backward
  Wide<T>* dprobs;
};

template <Activation kind, bool gated, class T>
MPX_INLINE void forward_row(const T* __restrict x, const T* __restrict bias, Wide<T> prob, T* __restrict out,
                            int64_t width) {
  using W = Wide<T>;
  for (int64_t i = 0; i < width; ++i) {
    const W y = activation_value<kind, VectorMath>(load(x[i]) + (bias != nullptr ? load(bias[i]) : W(0)));
    if constexpr (gated) {
      out[i] = store<T>(y * (load(x[width + i]) + (bias != nullptr ? load(bias[width + i]) : W(0))) * prob);
    } else {
      out[i] = store<T>(y * prob);
    }
  }
}

// Element i; what it adds to the gradient of the probability.
template <Activation kind, bool gated, class T>
MPX_INLINE Wide<T> gradient(const T* dy, const T* x, const T* bias, Wide<T> prob, T* dx, int64_t i, int64_t width) {
  using W = Wide<T>;
  const W a = load(x[i]) + (bias != nullptr ? load(bias[i]) : W(0)), g = load(dy[i]);
  const W y = activation_value<kind, VectorMath>(a);
  if constexpr (gated) {
    const W up = load(x[width + i]) + (bias != nullptr ? load(bias[width + i]) : W(0));
    dx[i] = store<T>(g * prob * up * activation_slope<kind, VectorMath>(a));
    dx[width + i] = store<T>(g * prob * y);
    return g * y * up;
  } else {
    dx[i] = store<T>(g * prob * activation_slope<kind, VectorMath>(a));
    return g * y;
  }
}

template <Activation kind, bool gated, class T>
MPX_INLINE Wide<T> backward_row(const T* __restrict dy, const T* __restrict x, const T* __restrict bias, Wide<T> prob,
                                T* __restrict dx, int64_t width) {
  return lane_sum<Wide<T>>(width, [&](int64_t i) { return gradient<kind, gated>(dy, x, bias, prob, dx, i, width); });
}

template <bool forward, Activation kind, bool gated, class T>
MPX_INLINE void rows_loop(const Operands<T>& o, int64_t width, int64_t begin, int64_t end) {
  const int64_t wide = gated ? 2 * width : width;
  for (int64_t row = begin; row < end; ++row) {
    const Wide<T> prob = o.probs != nullptr ? o.probs[row] : Wide<T>(1);
    if constexpr (forward) {
      forward_row<kind, gated>(o.x + row * wide, o.bias, prob, o.out + row * width, width);
    } else {
      const Wide<T> sum =
          backward_row<kind, gated>(o.dy + row * width, o.x + row * wide, o.bias, prob, o.out + row * wide, width);
      if (o.dprobs != nullptr) o.dprobs[row] = sum;
    }
  }
}

template <bool forward, class T>
MPX_INLINE void dispatch(const Operands<T>& o, const ExpertShape& shape, int64_t begin, int64_t end) {
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
#define MPX_ROWS(clones, T)                                                                     \
  clones void forward_rows(const Operands<T>& o, const ExpertShape& s, int64_t b, int64_t e) {  \
    dispatch<true>(o, s, b, e);                                                                 \
  }                                                                                             \
  clones void backward_rows(const Operands<T>& o, const ExpertShape& s, int64_t b, int64_t e) { \
    dispatch<false>(o, s, b, e);                                                                \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float)
MPX_ROWS(MPX_HALF_CLONES, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16)
MPX_ROWS(, double)
#undef MPX_ROWS

template <class T>
const T* bias_of(const T* bias, int64_t expert, const ExpertShape& shape) {
  return bias != nullptr ? bias + expert * shape.width * (shape.gated ? 2 : 1) : nullptr;
}

}  // namespace

template <class T>
void expert_activation(const T* x, const T* bias, const Wide<T>* probs, const int64_t* counts, T* out,
                       const ExpertShape& shape) {
  for_spans(counts, shape, [&](int64_t expert, int64_t begin, int64_t end) {
    forward_rows(Operands<T>{nullptr, x, bias_of(bias, expert, shape), probs, out, nullptr}, shape, begin, end);
  });
}

template <class T>
void expert_activation_backward(const ExpertActivationGradient<T>& g, const int64_t* counts,
                                const ExpertShape& shape) {
  for_spans(counts, shape, [&](int64_t expert, int64_t begin, int64_t end) {
    backward_rows(Operands<T>{g.dy, g.x, bias_of(g.bias, expert, shape), g.probs, g.dx, g.dprobs}, shape, begin, end);
  });
}

#define MPX_INSTANTIATE(T)                                                                                        \
  template void expert_activation<T>(const T*, const T*, const Wide<T>*, const int64_t*, T*, const ExpertShape&); \
  template void expert_activation_backward<T>(const ExpertActivationGradient<T>&, const int64_t*, const ExpertShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels
