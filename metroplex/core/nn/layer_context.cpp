#include "nn/layer_context.h"

namespace metroplex::nn {

void set_tensor_parallel(LayerContext& context, const comm::Group& tp, bool sequence_parallel) {
  context.tp = tp;
  context.sp = context.tp_reduce = comm::Group();
  context.sp_axes = {};
  if (sequence_parallel) {
    context.sp = tp;
    context.sp_axes = topology::Axis::tp;
  } else {
    context.tp_reduce = tp;
  }
}

}  // namespace metroplex::nn
