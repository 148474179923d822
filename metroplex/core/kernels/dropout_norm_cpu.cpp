#include <ATen/Parallel.h>

#include "kernels/dropout_norm.h"
#include "kernels/dropout_rows.h"
#include "kernels/norm_rows.h"

namespace metroplex::kernels {

template <class In, class Out>
void dropout_norm_forward(const DropoutOperands<Out, In>& sum, const NormForward<In, Out>& norm,
                          const DropoutNormShape& shape) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.norm.width));
  const WideRow<Out> added(sum.bias, shape.norm.width), bias(norm.bias, shape.norm.width),
      weight(norm.weight, shape.norm.width, shape.norm.one_plus);
  const auto wide_sum = widened(sum, added);
  const auto wide = widened(norm, weight, bias);
  at::parallel_for(0, shape.norm.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      drop_rows(wide_sum, shape.dropout, row, row + 1);
      norm_forward_rows(wide, shape.norm, row, row + 1);
    }
  });
}

template <class In, class Out>
void dropout_norm_backward(const NormBackward<In, Out>& norm, Out* dx, const DropoutNormShape& shape) {
  const DropoutOperands<In, Out, Wide<In>> drop{norm.dx, nullptr, nullptr, dx};
  const WideRow<Out> weight(norm.weight, shape.norm.width, shape.norm.one_plus);
  const auto wide = widened(norm, weight);
  NormBlocks<Wide<In>> blocks(shape.norm, norm.with_bias);
  const auto run = [&](int64_t block) {
    for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
      norm_backward_rows(wide, shape.norm, row, row + 1, blocks.dweight(block), blocks.dbias(block));
      drop_rows(drop, shape.dropout, row, row + 1);
    }
  };
  at::parallel_for(0, blocks.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) run(block);
  });
  blocks.sum(norm.lines);
  sum_dx(norm, dx, shape.norm);
}

#define MPX_INSTANTIATE(Out, In)                                                                            \
  template void dropout_norm_forward<In, Out>(const DropoutOperands<Out, In>&, const NormForward<In, Out>&, \
                                              const DropoutNormShape&);                                     \
  template void dropout_norm_backward<In, Out>(const NormBackward<In, Out>&, Out*, const DropoutNormShape&)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
