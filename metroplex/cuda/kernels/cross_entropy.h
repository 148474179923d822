// Cross entropy over logits split by columns: per-row statistics that are combined over the group, and a backward
// that turns the logits into their gradient in place. T is float or double.
#pragma once

#include <cstdint>

namespace metroplex::cuda::kernels {

// logits [rows, stride], of which the first `columns` of a row count (the rest is padding). targets [rows] are
// columns of this rank; values outside [0, columns) belong to another rank.
struct LogitsShape {
  int64_t rows = 0, stride = 0, columns = 0;
};

template <class T>
struct RowStatistics {
  T* maximum = nullptr;  // [rows]; -infinity without columns
  T* exp_sum = nullptr;  // sum of exp(x - maximum)
  T* target = nullptr;   // logit of the target, 0 where it is not here
  T* sum = nullptr;      // sum of the logits, or null
};
template <class T>
void cross_entropy_statistics(const T* logits, const int64_t* targets, const RowStatistics<T>& out,
                              const LogitsShape& shape);

template <class T>
struct CrossEntropyGradient {
  const T* logsumexp = nullptr;       // [rows] over all ranks
  const T* scale = nullptr;           // [rows] gradient of the row's loss
  double on_target = 1, uniform = 0;  // gradient = scale * (softmax - on_target * [target] - uniform); padding 0
};
template <class T>
void cross_entropy_backward(T* logits, const int64_t* targets, const CrossEntropyGradient<T>& gradient,
                            const LogitsShape& shape);

}  // namespace metroplex::cuda::kernels
