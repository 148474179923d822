#include "kernels/norm_device.h"

namespace metroplex::kernels {
namespace {

template <int64_t count, int packs, class In, class Out>
__global__ void __launch_bounds__(kThreads) forward_kernel(NormForward<In, Out> forward, NormShape shape) {
  unsigned turn = 0;
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x)
    norm_forward_row<count, packs>(forward, shape, row, turn);
}

template <int64_t count, int packs, class In, class Out>
__global__ void __launch_bounds__(kThreads, kNormBlocks<packs, In, Out>)
    backward_kernel(NormBackward<In, Out> backward, NormLines<Wide<In>> lines, NormShape shape) {
  unsigned turn = 0;
  norm_line<count, packs>(lines, shape, [&](int64_t row, NormColumns<Wide<In>, count, packs>& columns) {
    norm_backward_row<count, packs>(backward, shape, row, columns, turn);
  });
}

}  // namespace

template <class In, class Out>
void norm_forward_cuda(const NormForward<In, Out>& operands, const NormShape& shape, CUstream_st* stream) {
  if (shape.rows == 0) return;
  with_norm_packs<In, Out>(in_packs(operands, shape), shape, [&]<int64_t count, int packs>() {
    launch_kernel("norm_forward", forward_kernel<count, packs, In, Out>,
                  Grid{blocks_for_rows(shape.rows), kThreads, 0, stream}, operands, shape);
  });
}

template <class In, class Out>
void norm_backward_cuda(const NormBackward<In, Out>& operands, Wide<In>* lines, const NormShape& shape,
                        CUstream_st* stream) {
  if (shape.rows > 0) {
    const bool with_bias = operands.dbias != nullptr;
    with_norm_packs<In, Out>(in_packs(operands, lines, shape), shape, [&]<int64_t count, int packs>() {
      const unsigned room = norm_room_bytes<Wide<In>>(shape, with_bias, packs);
      launch_kernel("norm_backward", backward_kernel<count, packs, In, Out>,
                    Grid{static_cast<unsigned>(norm_lines(shape)), kThreads, room, stream}, operands,
                    NormLines<Wide<In>>{lines, room > 0, with_bias}, shape);
    });
  }
  sum_norm_lines(lines, operands.dweight, operands.dbias, shape, stream);
}

#define MPX_INSTANTIATE(Out, In)                                                                         \
  template void norm_forward_cuda<In, Out>(const NormForward<In, Out>&, const NormShape&, CUstream_st*); \
  template void norm_backward_cuda<In, Out>(const NormBackward<In, Out>&, Wide<In>*, const NormShape&, CUstream_st*)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
