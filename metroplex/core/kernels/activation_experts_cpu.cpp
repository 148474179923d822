#include "kernels/activation_rows.h"
#include "kernels/expert_spans.h"
#include "kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class T>
struct Operands {
  const T *dy, *x, *bias;
  const Wide<T>* probs;
  T* out;  // dx in backward
  Wide<T>* dprobs;
};

template <class T>
struct Buffers {
  alignas(64) Wide<T> x[kActivationChunk], up[kActivationChunk], y[kActivationChunk], slope[kActivationChunk];
  alignas(64) Wide<T> gate[kActivationChunk], shifted[kActivationChunk];  // after UnitLimits
};

template <class T>
MPX_INLINE const T* behind(const T* bias, int64_t at) {
  return bias != nullptr ? bias + at : nullptr;
}

template <class T>
MPX_INLINE void forward_row(const T* x, const T* bias, Wide<T> prob, T* __restrict out, const ExpertShape& shape) {
  Buffers<T> buffers;
  for_chunks(shape.width, [&](int64_t at, int64_t n) {
    const Wide<T>* const gate = with_bias(x + at, behind(bias, at), n, buffers.x);
    activation_values(shape.kind, limited_gate(shape.limits, gate, n, buffers.gate), n, buffers.y);
    if (shape.gated) {
      const int64_t second = shape.width + at;
      const Wide<T>* const up =
          limited_up(shape.limits, with_bias(x + second, behind(bias, second), n, buffers.up), n, buffers.shifted);
      for (int64_t i = 0; i < n; ++i) out[at + i] = store<T>(buffers.y[i] * up[i] * prob);
    } else {
      for (int64_t i = 0; i < n; ++i) out[at + i] = store<T>(buffers.y[i] * prob);
    }
  });
}

// Writes dx and returns the gradient of the probability.
template <class T>
MPX_INLINE Wide<T> backward_row(const T* __restrict dy, const T* x, const T* bias, Wide<T> prob, T* __restrict dx,
                                const ExpertShape& shape) {
  Buffers<T> buffers;
  Wide<T> sum = 0;
  for_chunks(shape.width, [&](int64_t at, int64_t n) {
    const Wide<T>* const gate = with_bias(x + at, behind(bias, at), n, buffers.x);
    activation_slopes(shape.kind, limited_gate(shape.limits, gate, n, buffers.gate), n, buffers.y, buffers.slope);
    const T* const g = dy + at;
    if (shape.gated) {
      const int64_t second = shape.width + at;
      const Wide<T>* const raw = with_bias(x + second, behind(bias, second), n, buffers.up);
      const Wide<T>* const up = limited_up(shape.limits, raw, n, buffers.shifted);
      for (int64_t i = 0; i < n; ++i) {
        dx[at + i] = store<T>(load(g[i]) * prob * up[i] * buffers.slope[i]);
        dx[second + i] = store<T>(load(g[i]) * prob * buffers.y[i]);
      }
      if (shape.limits.any()) {
        for (int64_t i = 0; i < n; ++i) {
          if (shape.limits.gate_slope(gate[i]) == 0) dx[at + i] = store<T>(Wide<T>(0));
          if (shape.limits.up_slope(raw[i]) == 0) dx[second + i] = store<T>(Wide<T>(0));
        }
      }
      sum += lane_sum<Wide<T>>(n, [&](int64_t i) { return load(g[i]) * buffers.y[i] * up[i]; });
    } else {
      for (int64_t i = 0; i < n; ++i) dx[at + i] = store<T>(load(g[i]) * prob * buffers.slope[i]);
      sum += lane_sum<Wide<T>>(n, [&](int64_t i) { return load(g[i]) * buffers.y[i]; });
    }
  });
  return sum;
}

#define MPX_ROWS(replicas, T)                                                                                      \
  replicas void forward_rows(const Operands<T>& operands, const ExpertShape& shape, int64_t begin, int64_t end) {  \
    const int64_t wide = shape.gated ? 2 * shape.width : shape.width;                                              \
    for (int64_t row = begin; row < end; ++row) {                                                                  \
      const Wide<T> prob = operands.probs != nullptr ? operands.probs[row] : Wide<T>(1);                           \
      forward_row<T>(operands.x + row * wide, operands.bias, prob, operands.out + row * shape.width, shape);       \
    }                                                                                                              \
  }                                                                                                                \
  replicas void backward_rows(const Operands<T>& operands, const ExpertShape& shape, int64_t begin, int64_t end) { \
    const int64_t wide = shape.gated ? 2 * shape.width : shape.width;                                              \
    for (int64_t row = begin; row < end; ++row) {                                                                  \
      const Wide<T> prob = operands.probs != nullptr ? operands.probs[row] : Wide<T>(1);                           \
      const Wide<T> sum = backward_row<T>(operands.dy + row * shape.width, operands.x + row * wide, operands.bias, \
                                          prob, operands.out + row * wide, shape);                                 \
      if (operands.dprobs != nullptr) operands.dprobs[row] = sum;                                                  \
    }                                                                                                              \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float)
MPX_ROWS(MPX_HALF_CLONES, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16)
MPX_ROWS(, double)
#undef MPX_ROWS

template <class T>
const T* expert_bias(const T* bias, int64_t expert, const ExpertShape& shape) {
  return bias != nullptr ? bias + expert * shape.width * (shape.gated ? 2 : 1) : nullptr;
}

}  // namespace

template <class T>
void expert_activation(const T* x, const T* bias, const Wide<T>* probs, const int64_t* counts, T* out,
                       const ExpertShape& shape) {
  for_spans(counts, shape, [&](int64_t expert, int64_t begin, int64_t end) {
    forward_rows(Operands<T>{nullptr, x, expert_bias(bias, expert, shape), probs, out, nullptr}, shape, begin, end);
  });
}

template <class T>
void expert_activation_backward(const ExpertActivationGradient<T>& g, const int64_t* counts,
                                const ExpertShape& shape) {
  for_spans(counts, shape, [&](int64_t expert, int64_t begin, int64_t end) {
    backward_rows(Operands<T>{g.dy, g.x, expert_bias(g.bias, expert, shape), g.probs, g.dx, g.dprobs}, shape, begin,
                  end);
  });
}

#define MPX_INSTANTIATE(T)                                                                                        \
  template void expert_activation<T>(const T*, const T*, const Wide<T>*, const int64_t*, T*, const ExpertShape&); \
  template void expert_activation_backward<T>(const ExpertActivationGradient<T>&, const int64_t*, const ExpertShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
