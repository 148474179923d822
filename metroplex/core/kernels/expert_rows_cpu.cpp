#include "kernels/expert_rows.h"

#include "kernels/expert_spans.h"
#include "kernels/vector_math.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::kernels {
namespace {

template <class T>
MPX_INLINE Wide<T> row_prob(const Wide<T>* probs, int64_t row) {
  return probs != nullptr ? probs[row] : Wide<T>(1);
}

template <class T>
MPX_INLINE Wide<T> dot(const T* __restrict a, const T* __restrict b, int64_t width) {
  return lane_sum<Wide<T>>(width, [&](int64_t i) { return load(a[i]) * load(b[i]); });
}

// Columns [begin, end) of one expert's rows.
template <class T>
MPX_INLINE void column_sums(const T* __restrict x, const Wide<T>* probs, Wide<T>* __restrict sums, int64_t rows,
                            int64_t width, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < rows; ++row) {
    const Wide<T> prob = row_prob<T>(probs, row);
    for (int64_t i = begin; i < end; ++i) sums[i] += load(x[row * width + i]) * prob;
  }
}

#define MPX_ROWS(replicas, T)                                                                          \
  replicas void bias_row(T* y, const T* bias, Wide<T> prob, int64_t width) {                           \
    for (int64_t i = 0; i < width; ++i) y[i] = store<T>(load(y[i]) + load(bias[i]) * prob);            \
  }                                                                                                    \
  replicas void scale_row(const T* x, Wide<T> prob, T* out, int64_t width) {                           \
    for (int64_t i = 0; i < width; ++i) out[i] = store<T>(load(x[i]) * prob);                          \
  }                                                                                                    \
  replicas Wide<T> dot_row(const T* a, const T* b, int64_t width) { return dot(a, b, width); }         \
  replicas void sum_rows(const T* x, const Wide<T>* probs, Wide<T>* sums, int64_t rows, int64_t width, \
                         int64_t begin, int64_t end) {                                                 \
    column_sums(x, probs, sums, rows, width, begin, end);                                              \
  }
MPX_ROWS(MPX_VECTOR_CLONES, float)
MPX_ROWS(MPX_HALF_CLONES, Bf16)
MPX_ROWS(MPX_HALF_CLONES, F16)
MPX_ROWS(, double)
#undef MPX_ROWS

}  // namespace

template <class T>
void expert_bias(T* y, const T* bias, const Wide<T>* probs, const int64_t* counts, const ExpertShape& shape) {
  for_spans(counts, shape, [&](int64_t expert, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      bias_row(y + row * shape.width, bias + expert * shape.width, row_prob<T>(probs, row), shape.width);
    }
  });
}

template <class T>
void expert_bias_probs(const T* dy, const T* bias, const int64_t* counts, Wide<T>* dprobs, const ExpertShape& shape) {
  for_spans(counts, shape, [&](int64_t expert, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      dprobs[row] += dot_row(dy + row * shape.width, bias + expert * shape.width, shape.width);
    }
  });
}

template <class T>
void expert_sums(const T* x, const Wide<T>* probs, const int64_t* counts, Wide<T>* sums, const ExpertShape& shape) {
  constexpr int64_t kColumns = 512;
  const std::vector<int64_t> first = first_rows(counts, shape);
  const int64_t parts = (shape.width + kColumns - 1) / kColumns;
  at::parallel_for(0, shape.experts * parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t expert = i / parts, column = i % parts * kColumns;
      const int64_t row = first[static_cast<size_t>(expert)], rows = first[static_cast<size_t>(expert) + 1] - row;
      sum_rows(x + row * shape.width, probs != nullptr ? probs + row : nullptr, sums + expert * shape.width, rows,
               shape.width, column, std::min(shape.width, column + kColumns));
    }
  });
}

template <class T>
void expert_scale(const T* x, const Wide<T>* probs, const int64_t* counts, T* out, const ExpertShape& shape) {
  for_spans(counts, shape, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      scale_row(x + row * shape.width, probs[row], out + row * shape.width, shape.width);
    }
  });
}

template <class T>
void expert_scale_backward(const ExpertActivationGradient<T>& g, const int64_t* counts, const ExpertShape& shape) {
  for_spans(counts, shape, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * shape.width;
      g.dprobs[row] = dot_row(g.dy + at, g.x + at, shape.width);
      scale_row(g.dy + at, g.probs[row], g.dx + at, shape.width);
    }
  });
}

#define MPX_INSTANTIATE(T)                                                                              \
  template void expert_bias<T>(T*, const T*, const Wide<T>*, const int64_t*, const ExpertShape&);       \
  template void expert_bias_probs<T>(const T*, const T*, const int64_t*, Wide<T>*, const ExpertShape&); \
  template void expert_sums<T>(const T*, const Wide<T>*, const int64_t*, Wide<T>*, const ExpertShape&); \
  template void expert_scale<T>(const T*, const Wide<T>*, const int64_t*, T*, const ExpertShape&);      \
  template void expert_scale_backward<T>(const ExpertActivationGradient<T>&, const int64_t*, const ExpertShape&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
