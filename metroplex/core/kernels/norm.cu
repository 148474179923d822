#include "kernels/norm_device.h"

namespace metroplex::kernels {
namespace {

template <class Plan, class In, class Out>
__global__ void __launch_bounds__(kThreads) forward_kernel(NormForward<In, Out> forward, NormShape shape) {
  unsigned turn = 0;
  for_rows<Plan>(shape, [&](int64_t row) {
    const RowElements<In, Plan> x(forward.x + row * shape.width, shape);
    norm_forward_row(forward, x, shape, row, turn);
  });
}

template <class Plan, class In, class Out>
__global__ void __launch_bounds__(kThreads, kNormBlocks<Plan, In, Out>)
    backward_kernel(NormBackward<In, Out> backward, NormLines<Wide<In>> lines, NormShape shape) {
  unsigned turn = 0;
  norm_line<Plan>(lines, shape, [&](int64_t row, NormColumns<Wide<In>, Plan>& columns) {
    norm_backward_row(backward, shape, row, columns, turn, [&](int64_t column, const Elements<In, Plan::kCount>& dx) {
      dx.write(backward.dx + row * shape.width + column);
      columns.add_dx(column, dx);
    });
  });
}

}  // namespace

template <class In, class Out>
void norm_forward_cuda(const NormForward<In, Out>& operands, const NormShape& shape, CUstream_st* stream) {
  if (shape.rows == 0) return;
  with_row_plan<In, Out>(in_packs(operands, shape), shape, [&]<class Plan>(Plan) {
    launch_kernel("norm_forward", forward_kernel<Plan, In, Out>,
                  Grid{blocks_for(shape.rows * Plan::kLanes), kThreads, 0, stream}, operands, shape);
  });
}

template <class In, class Out>
void norm_backward_cuda(const NormBackward<In, Out>& operands, const NormShape& shape, CUstream_st* stream) {
  if (shape.rows == 0) return;
  with_row_plan<In, Out>(in_packs(operands, shape), shape, [&]<class Plan>(Plan) {
    const unsigned room = norm_room_bytes<Plan>(shape, operands);
    launch_kernel("norm_backward", backward_kernel<Plan, In, Out>,
                  Grid{static_cast<unsigned>(norm_lines(shape)), kThreads, room, stream}, operands,
                  NormLines<Wide<In>>{operands.lines, room > 0, operands.with_bias, operands.with_dx}, shape);
  });
}

#define MPX_INSTANTIATE(Out, In)                                                                         \
  template void norm_forward_cuda<In, Out>(const NormForward<In, Out>&, const NormShape&, CUstream_st*); \
  template void norm_backward_cuda<In, Out>(const NormBackward<In, Out>&, const NormShape&, CUstream_st*)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
