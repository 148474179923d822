#include "kernels/attention_scores_row.h"
#include "kernels/launch.h"

namespace metroplex::kernels {
namespace {

constexpr int64_t kLongRow = 2048;  // keys; longer rows of many warps do not stay in cache between two passes

// For half types the hardware exponential is accurate enough: its relative error is 2^-22, plus 2^-23 per unit of
// x. Only x near 0 matter.
template <class T>
struct Exponential {
  static __device__ Wide<T> exp(Wide<T> x) {
#ifndef METROPLEX_KERNELS_ON_HOST
    if constexpr (kIsHalf<T>) return __expf(x);
#endif
    return ::exp(x);
  }
};
template <class T>
struct Warp : Exponential<T> {
  int lane = static_cast<int>(threadIdx.x % kWarp), lanes = static_cast<int>(kWarp);
  __device__ Wide<T> largest(Wide<T> x) const { return warp_reduce(x, Max()); }
  __device__ Wide<T> sum(Wide<T> x) const { return warp_reduce(x, Add()); }
};
template <class T>
struct Block : Exponential<T> {
  int lane = static_cast<int>(threadIdx.x), lanes = static_cast<int>(kThreads);
  __device__ Wide<T> largest(Wide<T> x) const { return block_reduce(x, Max()); }
  __device__ Wide<T> sum(Wide<T> x) const { return block_reduce(x, Add()); }
};

template <class T, template <class> class Team>
__device__ void for_rows(const ScoreBlock& block, const auto& each) {
  const Team<T> team{};
  const int64_t teams = kThreads / static_cast<unsigned>(team.lanes);
  for (int64_t row = blockIdx.x * teams + threadIdx.x / static_cast<unsigned>(team.lanes); row < block.rows();
       row += gridDim.x * teams)
    each(row, team);
}

template <class T, template <class> class Team>
__global__ void __launch_bounds__(kThreads) softmax_kernel(AttentionSoftmax<T> softmax, AttentionShape shape,
                                                           ScoreBlock block, DropoutFactor<Wide<T>> factor) {
  for_rows<T, Team>(block,
                    [&](int64_t row, const Team<T>& team) { softmax_row(softmax, shape, block, factor, row, team); });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_backward_kernel(AttentionSoftmaxBackward<T> backward, AttentionShape shape, ScoreBlock block,
                            DropoutFactor<Wide<T>> factor) {
  for_rows<T, Warp>(block, [&](int64_t row, const Warp<T>& team) {
    softmax_backward_row(backward, shape, block, factor, row, team);
  });
}

}  // namespace

template <class T>
void attention_softmax_cuda(const AttentionSoftmax<T>& operands, const AttentionShape& shape, const ScoreBlock& block,
                            CUstream_st* stream) {
  if (block.rows() == 0) return;
  const bool by_block = block.keys > kLongRow;
  const unsigned blocks = by_block ? blocks_for_rows(block.rows()) : blocks_for(block.rows() * kWarp);
  launch_kernel("attention_softmax", by_block ? softmax_kernel<T, Block> : softmax_kernel<T, Warp>,
                Grid{blocks, kThreads, 0, stream}, operands, shape, block,
                DropoutFactor<Wide<T>>(shape.dropout.probability));
}

template <class T>
void attention_softmax_backward_cuda(const AttentionSoftmaxBackward<T>& operands, const AttentionShape& shape,
                                     const ScoreBlock& block, CUstream_st* stream) {
  if (block.rows() == 0) return;
  launch_kernel("attention_softmax_backward", softmax_backward_kernel<T>,
                Grid{blocks_for(block.rows() * kWarp), kThreads, 0, stream}, operands, shape, block,
                DropoutFactor<Wide<T>>(shape.dropout.probability));
}

#define MPX_INSTANTIATE(T)                                                                                      \
  template void attention_softmax_cuda<T>(const AttentionSoftmax<T>&, const AttentionShape&, const ScoreBlock&, \
                                          CUstream_st*);                                                        \
  template void attention_softmax_backward_cuda<T>(const AttentionSoftmaxBackward<T>&, const AttentionShape&,   \
                                                   const ScoreBlock&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
