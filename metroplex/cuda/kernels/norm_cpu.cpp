#include <ATen/Parallel.h>

#include "cuda/kernels/norm.h"
#include "cuda/kernels/norm_rows.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math")

namespace metroplex::cuda::kernels {
namespace {

// One set of clones for all types, and the same in dropout_norm_cpu.cpp: equal bits need equal instructions.
#define MPX_ROWS(Out, In)                                                                                            \
  MPX_HALF_CLONES void forward_rows(const NormForward<In, Out>& p, const NormShape& s, int64_t begin, int64_t end) { \
    for (int64_t row = begin; row < end; ++row) norm_forward_row(p, s, row);                                         \
  }                                                                                                                  \
  MPX_HALF_CLONES void backward_rows(const NormBackward<In, Out>& p, const NormShape& s,                             \
                                     NormBlocks<Wide<In>>& blocks, int64_t block) {                                  \
    Wide<In>*dweight = blocks.dweight(block), *dbias = blocks.dbias(block);                                          \
    const int64_t end = blocks.end(block);                                                                           \
    for (int64_t row = blocks.begin(block); row < end; ++row) norm_backward_row(p, s, row, dweight, dbias);          \
  }
MPX_FOR_ELEMENT_PAIRS(MPX_ROWS)
#undef MPX_ROWS

}  // namespace

template <class In, class Out>
void norm_forward(const NormForward<In, Out>& operands, const NormShape& shape) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
  at::parallel_for(0, shape.rows, grain,
                   [&](int64_t begin, int64_t end) { forward_rows(operands, shape, begin, end); });
}

template <class In, class Out>
void norm_backward(const NormBackward<In, Out>& operands, const NormShape& shape) {
  NormBlocks<Wide<In>> blocks(shape, operands.dbias != nullptr);
  at::parallel_for(0, blocks.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) backward_rows(operands, shape, blocks, block);
  });
  blocks.sum(operands.dweight, operands.dbias);
}

#define MPX_INSTANTIATE(Out, In)                                                      \
  template void norm_forward<In, Out>(const NormForward<In, Out>&, const NormShape&); \
  template void norm_backward<In, Out>(const NormBackward<In, Out>&, const NormShape&)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels
