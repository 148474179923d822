#include <ATen/Parallel.h>

#include "cuda/kernels/dropout_norm.h"
#include "cuda/kernels/dropout_rows.h"
#include "cuda/kernels/norm_rows.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

template <class In, class Out>
struct Backward {
  NormBackward<In, Out> norm;
  Out* dx;
};
struct Rows {
  int64_t begin, end;
};

#define MPX_ROWS(Out, In)                                                                                  \
  MPX_HALF_CLONES void forward_rows(const DropoutOperands<Out, In>& sum, const NormForward<In, Out>& norm, \
                                    const DropoutNormShape& s, Rows rows) {                                \
    for (int64_t row = rows.begin; row < rows.end; ++row) {                                                \
      drop_row(sum, s.dropout, row);                                                                       \
      norm_forward_row(norm, s.norm, row);                                                                 \
    }                                                                                                      \
  }                                                                                                        \
  MPX_HALF_CLONES void backward_rows(const Backward<In, Out>& p, const DropoutNormShape& s,                \
                                     NormBlocks<Wide<In>>& blocks, int64_t block) {                        \
    const DropoutOperands<In, Out> drop{p.norm.dx, nullptr, nullptr, p.dx};                                \
    Wide<In>*dweight = blocks.dweight(block), *dbias = blocks.dbias(block);                                \
    const int64_t end = blocks.end(block);                                                                 \
    for (int64_t row = blocks.begin(block); row < end; ++row) {                                            \
      norm_backward_row(p.norm, s.norm, row, dweight, dbias);                                              \
      drop_row(drop, s.dropout, row);                                                                      \
    }                                                                                                      \
  }
MPX_FOR_ELEMENT_PAIRS(MPX_ROWS)
#undef MPX_ROWS

}  // namespace

template <class In, class Out>
void dropout_norm_forward(const DropoutOperands<Out, In>& sum, const NormForward<In, Out>& norm,
                          const DropoutNormShape& shape) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.norm.width));
  at::parallel_for(0, shape.norm.rows, grain, [&](int64_t begin, int64_t end) {
    forward_rows(sum, norm, shape, {begin, end});
  });
}

template <class In, class Out>
void dropout_norm_backward(const NormBackward<In, Out>& norm, Out* dx, const DropoutNormShape& shape) {
  const Backward<In, Out> operands{norm, dx};
  NormBlocks<Wide<In>> blocks(shape.norm, norm.dbias != nullptr);
  at::parallel_for(0, blocks.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) backward_rows(operands, shape, blocks, block);
  });
  blocks.sum(norm.dweight, norm.dbias);
}

#define MPX_INSTANTIATE(Out, In)                                                                            \
  template void dropout_norm_forward<In, Out>(const DropoutOperands<Out, In>&, const NormForward<In, Out>&, \
                                              const DropoutNormShape&);                                     \
  template void dropout_norm_backward<In, Out>(const NormBackward<In, Out>&, Out*, const DropoutNormShape&)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels
