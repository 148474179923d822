#include "nn/layer_context.h"

namespace metroplex::nn {

void set_tensor_parallel(LayerContext& context, const comm::Group& tp, bool sequence_parallel) {
  context.tp = tp;
  context.sp = sequence_parallel ? tp : comm::Group();
  context.tp_dense = sequence_parallel ? comm::Group() : tp;
  context.sp_axes = sequence_parallel ? topology::Axis::tp : topology::AxisSet();
}

}  // namespace metroplex::nn
