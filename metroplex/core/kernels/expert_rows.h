// Row operations of experts, except matrix products. The row counts are on the device. `counts` [experts] are the
// numbers of consecutive rows of each expert; rows after the last expert are neither read nor written. T is float,
// double, Bf16 or F16 (half.h). Probabilities [rows] may be null, which means 1; their gradients may be null,
// which skips them. Every sum has a fixed order.
#pragma once

#include <cstdint>

#include "kernels/activation.h"

namespace metroplex::kernels {

struct ExpertShape {
  int64_t experts = 0;
  int64_t rows = 0;   // buffer size; counts beyond it are clamped
  int64_t width = 0;  // row width (output width for a gated activation)
  Activation kind = Activation::gelu;
  bool gated = false;
  UnitLimits limits = {};
};

// out [rows, width] = f(x + bias) p, or f(gate) up p for rows [gate; up]; bias [experts, width (x 2)] may be null.
template <class T>
void expert_activation(const T* x, const T* bias, const Wide<T>* probs, const int64_t* counts, T* out,
                       const ExpertShape& shape);
template <class T>
struct ExpertActivationGradient {
  const T *dy = nullptr, *x = nullptr, *bias = nullptr;
  const Wide<T>* probs = nullptr;
  T* dx = nullptr;
  Wide<T>* dprobs = nullptr;
};
template <class T>
void expert_activation_backward(const ExpertActivationGradient<T>& g, const int64_t* counts,
                                const ExpertShape& shape);

// y += p times the bias of the row's expert; bias [experts, width].
template <class T>
void expert_bias(T* y, const T* bias, const Wide<T>* probs, const int64_t* counts, const ExpertShape& shape);
// dprobs += dy . bias of the row's expert.
template <class T>
void expert_bias_probs(const T* dy, const T* bias, const int64_t* counts, Wide<T>* dprobs, const ExpertShape& shape);
// sums [experts, width] += the sum of p x over the rows of each expert.
template <class T>
void expert_sums(const T* x, const Wide<T>* probs, const int64_t* counts, Wide<T>* sums, const ExpertShape& shape);

// out = x p.
template <class T>
void expert_scale(const T* x, const Wide<T>* probs, const int64_t* counts, T* out, const ExpertShape& shape);
// dx = dy p, dprobs = dy . x.
template <class T>
void expert_scale_backward(const ExpertActivationGradient<T>& g, const int64_t* counts, const ExpertShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
template <class T>
void expert_activation_cuda(const T* x, const T* bias, const Wide<T>* probs, const int64_t* counts, T* out,
                            const ExpertShape& shape, CUstream_st* stream);
template <class T>
void expert_activation_backward_cuda(const ExpertActivationGradient<T>& g, const int64_t* counts,
                                     const ExpertShape& shape, CUstream_st* stream);
template <class T>
void expert_bias_cuda(T* y, const T* bias, const Wide<T>* probs, const int64_t* counts, const ExpertShape& shape,
                      CUstream_st* stream);
template <class T>
void expert_bias_probs_cuda(const T* dy, const T* bias, const int64_t* counts, Wide<T>* dprobs,
                            const ExpertShape& shape, CUstream_st* stream);
template <class T>
void expert_sums_cuda(const T* x, const Wide<T>* probs, const int64_t* counts, Wide<T>* sums,
                      const ExpertShape& shape, CUstream_st* stream);
template <class T>
void expert_scale_cuda(const T* x, const Wide<T>* probs, const int64_t* counts, T* out, const ExpertShape& shape,
                       CUstream_st* stream);
template <class T>
void expert_scale_backward_cuda(const ExpertActivationGradient<T>& g, const int64_t* counts, const ExpertShape& shape,
                                CUstream_st* stream);

}  // namespace metroplex::kernels
