// What experts do to their rows besides products, with the number of rows of each on the device: `counts` [experts],
// rows one expert behind the other; rows behind the last one are neither read nor written. T is float, double, Bf16
// or F16 (half.h). Probabilities [rows] may be null, for 1, and so may their gradients, which are then not asked for.
// Every result is a sum in a fixed order.
#pragma once

#include <cstdint>

#include "cuda/kernels/activation.h"

namespace metroplex::cuda::kernels {

struct ExpertShape {
  int64_t experts = 0;
  int64_t rows = 0;   // that there is room for: counts beyond are cut
  int64_t width = 0;  // of a row; of a gated activation, of its output
  Activation kind = Activation::gelu;
  bool gated = false;
  UnitLimits limits = {};
};

// out [rows, width] = f(x + bias) p, or f(gate) up p of rows [gate; up]; bias [experts, width (x 2)] may be null.
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

// y += bias of the row's expert times p; bias [experts, width].
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

// The same on a GPU, enqueued on `stream`; all pointers are of the device. base::Error("cuda", ...) when nothing was
// launched.
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

}  // namespace metroplex::cuda::kernels
