// Routing of tokens: the k experts of each row of logits and their probabilities in one pass, and the gradient of the
// logits in another. Formulas as in moe/routing.h.
#pragma once

#include <cstdint>

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

enum class RouteScore {
  softmax_of_chosen,
  softmax_of_all,
  sigmoid,      // over their sum where k > 1
  sqrtsoftplus  // likewise
};

struct RouteShape {
  int64_t tokens = 0, experts = 0, k = 0;
  RouteScore score = RouteScore::softmax_of_chosen;
  double scale = 1;     // multiplies the probabilities
  bool chosen = false;  // the choice is given
};

// logits [tokens, experts]; bias [experts] or null, added to the scores for the choice alone; experts [tokens, k] is
// written, or with shape.chosen read; probs [tokens, k]. In descending order of what is chosen by; of equal ones the
// lowest expert first, and what is no number last.
template <class T>
struct RouteForward {
  const T *logits = nullptr, *bias = nullptr;
  int64_t* experts = nullptr;
  T* probs = nullptr;
};
template <class T>
void route_forward(const RouteForward<T>& operands, const RouteShape& shape);

// dlogits [tokens, experts] of dprobs [tokens, k].
template <class T>
struct RouteBackward {
  const T *dprobs = nullptr, *logits = nullptr;
  const int64_t* experts = nullptr;
  T* dlogits = nullptr;
};
template <class T>
void route_backward(const RouteBackward<T>& operands, const RouteShape& shape);

// The same on a GPU, enqueued on `stream`. The choice by logits is that of the CPU; exponentials may differ by
// roundings. base::Error("cuda", ...) when nothing was launched.
template <class T>
void route_forward_cuda(const RouteForward<T>& operands, const RouteShape& shape, CUstream_st* stream);
template <class T>
void route_backward_cuda(const RouteBackward<T>& operands, const RouteShape& shape, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels
