#include "kernels/attention_scores_row.h"

namespace metroplex::kernels {
namespace {

template <class T>
struct OneThread {
  int lane = 0, lanes = 1;
  static T largest(T x) { return x; }
  static T sum(T x) { return x; }
  static T exp(T x) { return std::exp(x); }
};

}  // namespace

template <class T>
void attention_softmax(const AttentionSoftmax<T>& operands, const AttentionShape& shape, const ScoreBlock& block) {
  const DropoutFactor<Wide<T>> factor(shape.dropout.probability);
  for (int64_t row = 0; row < block.rows(); ++row)
    softmax_row(operands, shape, block, factor, row, OneThread<Wide<T>>{});
}

template <class T>
void attention_softmax_backward(const AttentionSoftmaxBackward<T>& operands, const AttentionShape& shape,
                                const ScoreBlock& block) {
  const DropoutFactor<Wide<T>> factor(shape.dropout.probability);
  for (int64_t row = 0; row < block.rows(); ++row)
    softmax_backward_row(operands, shape, block, factor, row, OneThread<Wide<T>>{});
}

#define MPX_INSTANTIATE(T)                                                                                  \
  template void attention_softmax<T>(const AttentionSoftmax<T>&, const AttentionShape&, const ScoreBlock&); \
  template void attention_softmax_backward<T>(const AttentionSoftmaxBackward<T>&, const AttentionShape&,    \
                                              const ScoreBlock&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
