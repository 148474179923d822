// Cross entropy over logits split by columns: per-row statistics, which the caller combines over the group, and a
// backward that overwrites the logits with their gradient. T is float, double, Bf16 or F16; per-row numbers are
// Wide<T>.
#pragma once

#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

// logits [rows, stride], of which the first `columns` of a row are valid (the rest is padding). targets [rows] are
// local columns; values outside [0, columns) belong to another rank.
struct LogitsShape {
  int64_t rows = 0, stride = 0, columns = 0;
};

template <class A>
struct RowStatistics {
  A* maximum = nullptr;  // [rows]; -infinity if there are no columns
  A* exp_sum = nullptr;  // sum of exp(x - maximum)
  A* target = nullptr;   // logit of the target, 0 if it is on another rank
  A* sum = nullptr;      // sum of the logits, or null
};
template <class T>
void cross_entropy_statistics(const T* logits, const int64_t* targets, const RowStatistics<Wide<T>>& out,
                              const LogitsShape& shape);

template <class A>
struct CrossEntropyGradient {
  const A* logsumexp = nullptr;       // [rows] over all ranks
  const A* scale = nullptr;           // [rows] gradient of the row's loss
  double on_target = 1, uniform = 0;  // gradient = scale * (softmax - on_target * [target] - uniform); padding 0
};
template <class T>
void cross_entropy_backward(T* logits, const int64_t* targets, const CrossEntropyGradient<Wide<T>>& gradient,
                            const LogitsShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
template <class T>
void cross_entropy_statistics_cuda(const T* logits, const int64_t* targets, const RowStatistics<Wide<T>>& out,
                                   const LogitsShape& shape, CUstream_st* stream);
template <class T>
void cross_entropy_backward_cuda(T* logits, const int64_t* targets, const CrossEntropyGradient<Wide<T>>& gradient,
                                 const LogitsShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels
