#include "cuda/kernels/dropout.h"
#include "cuda/kernels/dropout_block.h"
#include "cuda/kernels/launch.h"

namespace metroplex::cuda::kernels {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    bias_dropout_add_kernel(DropoutOperands<T> operands, DropoutShape shape, DropoutFactor<T> factor, int64_t items) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; item < items; item += stride) {
    dropout_block(operands, shape, factor, item);
  }
}

}  // namespace

template <class T>
void bias_dropout_add_cuda(const T* x, const T* bias, const T* residual, T* out, const DropoutShape& shape,
                           CUstream_st* stream) {
  const int64_t items = shape.num_rows * dropout_blocks_per_row(shape.width);
  if (shape.num_rows == 0 || shape.width == 0) return;
  bias_dropout_add_kernel<T><<<blocks_for(items), kThreads, 0, stream>>>({x, bias, residual, out}, shape,
                                                                         DropoutFactor<T>(shape.probability), items);
  check_launch("bias_dropout_add");
}

#define MPX_INSTANTIATE(T) \
  template void bias_dropout_add_cuda<T>(const T*, const T*, const T*, T*, const DropoutShape&, CUstream_st*)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::cuda::kernels
