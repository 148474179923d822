#include "train/gradients.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "comm/collectives.h"

namespace metroplex::train {

pipeline::PipelineOutput forward_backward(Assembly& a, const std::vector<nn::Microbatch>& batches,
                                          const at::Tensor& factors) {
  const auto count = static_cast<int64_t>(batches.size());
  a.families.begin_step(count);
  for (nn::Buffer* buffer : a.buffers) buffer->pending.zero_();
  return a.run_pipeline(batches, factors, false);
}

namespace {

// Gradients of one type that the same ranks add up.
struct Summands {
  topology::AxisSet axes;
  std::vector<at::Tensor> gradients;
};

std::vector<Summands> partial_gradients(const std::vector<distributed::Slice>& slices) {
  std::vector<Summands> all;
  for (const distributed::Slice& slice : slices) {
    const topology::AxisSet axes = slice.param->placement.partial;
    if (axes.empty() || slice.size() == 0) continue;
    const auto same = [&](const Summands& of) {
      return of.axes == axes && of.gradients[0].scalar_type() == slice.gradient.scalar_type();
    };
    auto found = std::find_if(all.begin(), all.end(), same);
    if (found == all.end()) found = all.insert(all.end(), {axes, {}});
    found->gradients.push_back(slice.gradient);
  }
  return all;
}

// Gradients of which several ranks, which hold the same slices, have a summand each: norms under sequence
// parallelism, shared parameters. Those of the same ranks go in one message.
void reduce_shared_gradients(Assembly& a) {
  for (const Summands& of : partial_gradients(a.slices)) {
    const comm::Group& group = a.groups().over(of.axes);
    if (group.size() == 1) continue;
    const at::Tensor flat = at::cat(of.gradients);
    comm::all_reduce(flat, group);
    int64_t at = 0;
    for (const at::Tensor& gradient : of.gradients) {
      gradient.copy_(flat.narrow(0, at, gradient.numel()));
      at += gradient.numel();
    }
  }
  sum_shared_gradients(a.shared, a.slices);
}

}  // namespace

void finish_gradients(Assembly& a) {
  a.families.finish_gradients();
  reduce_shared_gradients(a);
}

}  // namespace metroplex::train
