#include "kernels/group_walk.h"
#include "kernels/launch.h"
#include "kernels/rounding_errors.h"

namespace metroplex::kernels {
namespace {

static_assert(kThreads == kFigureThreads, "CPU and CUDA add in the same order");

// Adds over the thread block; every thread gets the result.
__device__ RoundingFigures total_of_threads(const RoundingFigures& mine) {
  return {block_reduce(mine.elements, Add()),      block_reduce(mine.nonfinite, Add()),
          block_reduce(mine.saturated, Add()),     block_reduce(mine.flushed, Add()),
          block_reduce(mine.squared_error, Add()), block_reduce(mine.squares, Add()),
          block_reduce(mine.largest, Max()),       block_reduce(mine.decode, Max())};
}

// Block (part, group): the figures of one of kFigureParts parts of the group's blocks.
template <class T>
__global__ void __launch_bounds__(kThreads) part_figures_kernel(RoundingFigures* parts, RoundedOperand<T> operand) {
  using W = Wide<T>;
  const RoundShape& shape = operand.shape;
  GroupWalk rows{operand.counts, shape.groups, shape.rows};
  while (rows.group < static_cast<int64_t>(blockIdx.y)) rows.next();
  const W magnitude = operand.magnitudes != nullptr ? operand.magnitudes[blockIdx.y] : W(0);
  const int64_t blocks = FigureBlock(shape).count(rows.end - rows.begin);
  RoundingFigures mine;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < blocks; i += kFigureParts * kThreads)
    add_block(mine, operand, {rows.begin, rows.end, magnitude}, i);
  if (blocks > 0) mine.decode = group_decode(magnitude, shape);
  const RoundingFigures total = total_of_threads(mine);
  if (threadIdx.x == 0) parts[int64_t{blockIdx.y} * kFigureParts + blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    total_figures_kernel(RoundingFigures* figures, const RoundingFigures* parts, int64_t count) {
  RoundingFigures mine;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) add_figures(mine, parts[i]);
  const RoundingFigures total = total_of_threads(mine);
  if (threadIdx.x == 0) add_figures(*figures, total);
}

}  // namespace

template <class T>
void rounding_errors_cuda(RoundingFigures* figures, RoundingFigures* parts, const RoundedOperand<T>& operand,
                          CUstream_st* stream) {
  const auto groups = static_cast<unsigned>(operand.shape.groups);
  if (groups == 0) return;
  launch_kernel("rounding_errors", part_figures_kernel<T>,
                Grid{dim3(static_cast<unsigned>(kFigureParts), groups), kThreads, 0, stream}, parts, operand);
  launch_kernel("rounding_errors_total", total_figures_kernel, Grid{1, kThreads, 0, stream}, figures,
                static_cast<const RoundingFigures*>(parts), operand.shape.groups * kFigureParts);
}

#define MPX_INSTANTIATE(T) \
  template void rounding_errors_cuda<T>(RoundingFigures*, RoundingFigures*, const RoundedOperand<T>&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
