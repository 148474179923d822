#include "kernels/dropout.h"
#include "kernels/dropout_block.h"
#include "kernels/launch.h"

namespace metroplex::kernels {
namespace {

template <class In, class Out>
__global__ void __launch_bounds__(kThreads)
    bias_dropout_add_kernel(DropoutOperands<In, Out> operands, DropoutShape shape, DropoutFactor<Wide<In>> factor,
                            int64_t items) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    dropout_block(operands, shape, factor, item);
  }
}

}  // namespace

template <class In, class Out>
void bias_dropout_add_cuda(const DropoutOperands<In, Out>& operands, const DropoutShape& shape, CUstream_st* stream) {
  const int64_t items = shape.num_rows * dropout_blocks_per_row(shape.width);
  if (shape.num_rows == 0 || shape.width == 0) return;
  launch_kernel("bias_dropout_add", bias_dropout_add_kernel<In, Out>, Grid{blocks_for(items), kThreads, 0, stream},
                operands, shape, DropoutFactor<Wide<In>>(shape.probability), items);
}

#define MPX_INSTANTIATE(In, Out) \
  template void bias_dropout_add_cuda<In, Out>(const DropoutOperands<In, Out>&, const DropoutShape&, CUstream_st*)
MPX_FOR_ELEMENT_CASTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
