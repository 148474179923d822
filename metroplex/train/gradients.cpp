#include "train/gradients.h"

#include "comm/collectives.h"

namespace metroplex::train {

pipeline::PipelineOutput forward_backward(Assembly& a, const std::vector<nn::Microbatch>& batches,
                                          const at::Tensor& factors) {
  const auto count = static_cast<int64_t>(batches.size());
  a.families.begin_step(count);
  for (nn::Buffer* buffer : a.buffers) buffer->pending.zero_();
  return a.run_pipeline(batches, factors, false);
}

// Gradients of which several ranks, which hold the same slices, have a summand each: norms under sequence
// parallelism, shared parameters.
static void reduce_shared_gradients(Assembly& a) {
  for (const distributed::Slice& slice : a.slices) {
    const topology::AxisSet partial = slice.param->placement.partial;
    if (!partial.empty()) comm::all_reduce(slice.gradient, a.groups().over(partial));
  }
  sum_shared_gradients(a.shared, a.slices);
}

void finish_gradients(Assembly& a) {
  a.families.finish_gradients();
  reduce_shared_gradients(a);
}

}  // namespace metroplex::train
