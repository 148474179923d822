#include "kernels/dropout_device.h"
#include "kernels/dropout_norm.h"
#include "kernels/norm_device.h"

namespace metroplex::kernels {
namespace {

// Processes one row of bias_dropout_add with the whole thread block; all of it is written on return. Only for rows
// that the registers of a block cannot hold.
template <class In, class Out>
__device__ void drop_row(const DropoutOperands<In, Out>& operands, const DropoutShape& shape,
                         const DropoutFactor<Wide<In>>& factor, int64_t row) {
  const int64_t items = dropout_blocks_per_row(shape.width);
  for (int64_t item = threadIdx.x; item < items; item += blockDim.x)
    dropout_block(operands, shape, factor, row * items + item);
  __syncthreads();
}

template <class Plan, class In, class Out>
__global__ void __launch_bounds__(kThreads) forward_kernel(DropoutOperands<Out, In> sum, NormForward<In, Out> norm,
                                                           DropoutNormShape shape, DropoutFactor<Wide<In>> factor) {
  unsigned turn = 0;
  for_rows<Plan>(shape.norm, [&](int64_t row) {
    if constexpr (Plan::kPacks > 0) {
      const RowElements<In, Plan> h(shape.norm, [&](int64_t column) {
        return write_dropped_sum<Plan::kCount>(sum, shape.dropout, factor, row, column);
      });
      norm_forward_row(norm, h, shape.norm, row, turn);
    } else {
      drop_row(sum, shape.dropout, factor, row);
      const RowElements<In, Plan> h(norm.x + row * shape.norm.width, shape.norm);
      norm_forward_row(norm, h, shape.norm, row, turn);
    }
  });
}

template <class In, class Out>
struct Backward {
  NormBackward<In, Out> norm;
  Out* dx;
  NormLines<Wide<In>> lines;
};

template <class Plan, class In, class Out>
__global__ void __launch_bounds__(kThreads, kNormBlocks<Plan, In, Out>)
    backward_kernel(Backward<In, Out> backward, DropoutNormShape shape, DropoutFactor<Wide<In>> factor) {
  const DropoutOperands<In, Out> drop{backward.norm.dx, nullptr, nullptr, backward.dx};
  unsigned turn = 0;
  norm_line<Plan>(backward.lines, shape.norm, [&](int64_t row, NormColumns<Wide<In>, Plan>& columns) {
    const int64_t begin = row * shape.norm.width;
    norm_backward_row(backward.norm, shape.norm, row, columns, turn,
                      [&](int64_t column, const Elements<In, Plan::kCount>& dh) {
                        dh.write(backward.norm.dx + begin + column);
                        if constexpr (Plan::kPacks > 0) {
                          Elements<Out, Plan::kCount> dx;
                          for (int64_t i = 0; i < Plan::kCount; ++i) dx.values[i] = load(store<In>(dh.values[i]));
                          drop_elements(dx.values, shape.dropout, factor, row, column);
                          dx.write(backward.dx + begin + column);
                          columns.add_dx(column, dx);
                        }
                      });
    if constexpr (Plan::kPacks == 0) {
      __syncthreads();  // threads of drop_row read values written by other threads
      drop_row(drop, shape.dropout, factor, row);
      for_columns<Plan>(shape.norm, [&](int, int64_t column) {
        Elements<Out, Plan::kCount> dx;
        dx.read(backward.dx + begin + column);
        columns.add_dx(column, dx);
      });
    }
  });
}

}  // namespace

template <class In, class Out>
void dropout_norm_forward_cuda(const DropoutOperands<Out, In>& sum, const NormForward<In, Out>& norm,
                               const DropoutNormShape& shape, CUstream_st* stream) {
  if (shape.norm.rows == 0) return;
  const bool whole_packs = in_packs(norm, shape.norm) && aligned_for_packs(sum.x, sum.bias, sum.residual);
  with_row_plan<In, Out>(whole_packs, shape.norm, [&]<class Plan>(Plan) {
    launch_kernel("dropout_norm_forward", forward_kernel<Plan, In, Out>,
                  Grid{blocks_for(shape.norm.rows * Plan::kLanes), kThreads, 0, stream}, sum, norm, shape,
                  DropoutFactor<Wide<In>>(shape.dropout.probability));
  });
}

template <class In, class Out>
void dropout_norm_backward_cuda(const NormBackward<In, Out>& norm, Out* dx, const DropoutNormShape& shape,
                                CUstream_st* stream) {
  if (shape.norm.rows == 0) return;
  const bool whole_packs = in_packs(norm, shape.norm) && aligned_for_packs(dx);
  with_row_plan<In, Out>(whole_packs, shape.norm, [&]<class Plan>(Plan) {
    const unsigned room = norm_room_bytes<Plan>(shape.norm, norm);
    launch_kernel("dropout_norm_backward", backward_kernel<Plan, In, Out>,
                  Grid{static_cast<unsigned>(norm_lines(shape.norm)), kThreads, room, stream},
                  Backward<In, Out>{norm, dx, {norm.lines, room > 0, norm.with_bias, norm.with_dx}}, shape,
                  DropoutFactor<Wide<In>>(shape.dropout.probability));
  });
}

#define MPX_INSTANTIATE(Out, In)                                                                                 \
  template void dropout_norm_forward_cuda<In, Out>(const DropoutOperands<Out, In>&, const NormForward<In, Out>&, \
                                                   const DropoutNormShape&, CUstream_st*);                       \
  template void dropout_norm_backward_cuda<In, Out>(const NormBackward<In, Out>&, Out*, const DropoutNormShape&, \
                                                    CUstream_st*)
MPX_FOR_ELEMENT_PAIRS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
