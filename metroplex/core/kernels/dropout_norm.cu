#include "kernels/dropout_norm.h"
#include "kernels/norm_device.h"

namespace metroplex::kernels {
namespace {

// Processes one row of bias_dropout_add with the whole thread block; all of it is written on return.
template <class In, class Out>
__device__ void drop_row(const DropoutOperands<In, Out>& operands, const DropoutShape& shape,
                         const DropoutFactor<Wide<In>>& factor, int64_t row) {
  const int64_t items = dropout_blocks_per_row(shape.width);
  for (int64_t item = threadIdx.x; item < items; item += blockDim.x)
    dropout_block(operands, shape, factor, row * items + item);
  __syncthreads();
}

template <int64_t count, int packs, class In, class Out>
__global__ void __launch_bounds__(kThreads) forward_kernel(DropoutOperands<Out, In> sum, NormForward<In, Out> norm,
                                                           DropoutNormShape shape, DropoutFactor<Wide<In>> factor) {
  unsigned turn = 0;
  for (int64_t row = blockIdx.x; row < shape.norm.rows; row += gridDim.x) {
    drop_row(sum, shape.dropout, factor, row);
    norm_forward_row<count, packs>(norm, shape.norm, row, turn);
  }
}

template <class In, class Out>
struct Backward {
  NormBackward<In, Out> norm;
  Out* dx;
  NormLines<Wide<In>> lines;
};

template <int64_t count, int packs, class In, class Out>
__global__ void __launch_bounds__(kThreads, kNormBlocks<packs, In, Out>)
    backward_kernel(Backward<In, Out> backward, DropoutNormShape shape, DropoutFactor<Wide<In>> factor) {
  const DropoutOperands<In, Out> drop{backward.norm.dx, nullptr, nullptr, backward.dx};
  unsigned turn = 0;
  norm_line<count, packs>(backward.lines, shape.norm, [&](int64_t row, NormColumns<Wide<In>, count, packs>& columns) {
    norm_backward_row<count, packs>(backward.norm, shape.norm, row, columns, turn);
    __syncthreads();  // threads of drop_row read values written by other threads
    drop_row(drop, shape.dropout, factor, row);
  });
}

}  // namespace

template <class In, class Out>
void dropout_norm_forward_cuda(const DropoutOperands<Out, In>& sum, const NormForward<In, Out>& norm,
                               const DropoutNormShape& shape, CUstream_st* stream) {
  if (shape.norm.rows == 0) return;
  with_norm_packs<In, Out>(in_packs(norm, shape.norm), shape.norm, [&]<int64_t count, int packs>() {
    launch_kernel("dropout_norm_forward", forward_kernel<count, packs, In, Out>,
                  Grid{blocks_for_rows(shape.norm.rows), kThreads, 0, stream}, sum, norm, shape,
                  DropoutFactor<Wide<In>>(shape.dropout.probability));
  });
}

template <class In, class Out>
void dropout_norm_backward_cuda(const NormBackward<In, Out>& norm, Out* dx, Wide<In>* lines,
                                const DropoutNormShape& shape, CUstream_st* stream) {
  if (shape.norm.rows > 0) {
    const bool with_bias = norm.dbias != nullptr;
    with_norm_packs<In, Out>(in_packs(norm, lines, shape.norm), shape.norm, [&]<int64_t count, int packs>() {
      const unsigned room = norm_room_bytes<Wide<In>>(shape.norm, with_bias, packs);
      launch_kernel("dropout_norm_backward", backward_kernel<count, packs, In, Out>,
                    Grid{static_cast<unsigned>(norm_lines(shape.norm)), kThreads, room, stream},
                    Backward<In, Out>{norm, dx, {lines, room > 0, with_bias}}, shape,
                    DropoutFactor<Wide<In>>(shape.dropout.probability));
    });
  }
  sum_norm_lines(lines, norm.dweight, norm.dbias, shape.norm, stream);
}

#define MPX_INSTANTIATE(Out, In)                                                                                 \
  template void dropout_norm_forward_cuda<In, Out>(const DropoutOperands<Out, In>&, const NormForward<In, Out>&, \
                                                   const DropoutNormShape&, CUstream_st*);                       \
  template void dropout_norm_backward_cuda<In, Out>(const NormBackward<In, Out>&, Out*, Wide<In>*,               \
                                                    const DropoutNormShape&, CUstream_st*)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
