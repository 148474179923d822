#include "cuda/kernels/norm_device.h"

namespace metroplex::cuda::kernels {
namespace {

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) forward_kernel(NormForward<In, Out> p, NormShape s) {
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) norm_forward_row(p, s, row);
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(NormBackward<In, Out> p, Wide<In>* lines, NormShape s, bool shared) {
  using T = Wide<In>;
  norm_line(lines, norm_room<T>(shared), s,
            [&](int64_t row, const NormColumns<T>& columns) { norm_backward_row(p, s, row, columns); });
}

}  // namespace

template <class In, class Out>
void norm_forward_cuda(const NormForward<In, Out>& operands, const NormShape& shape, CUstream_st* stream) {
  if (shape.rows == 0) return;
  launch_kernel("norm_forward", forward_kernel<In, Out>, Grid{blocks_for_rows(shape.rows), kThreads, 0, stream},
                operands, shape);
}

template <class In, class Out>
void norm_backward_cuda(const NormBackward<In, Out>& operands, Wide<In>* lines, const NormShape& shape,
                        CUstream_st* stream) {
  if (shape.rows > 0) {
    const unsigned room = norm_room_bytes<Wide<In>>(shape);
    launch_kernel("norm_backward", backward_kernel<In, Out>,
                  Grid{static_cast<unsigned>(norm_lines(shape)), kThreads, room, stream}, operands, lines, shape,
                  room > 0);
  }
  sum_norm_lines(lines, operands.dweight, operands.dbias, shape, stream);
}

#define MPX_INSTANTIATE(Out, In)                                                                         \
  template void norm_forward_cuda<In, Out>(const NormForward<In, Out>&, const NormShape&, CUstream_st*); \
  template void norm_backward_cuda<In, Out>(const NormBackward<In, Out>&, Wide<In>*, const NormShape&, CUstream_st*)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::cuda::kernels
