#include "step/step.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "comm/collectives.h"

namespace metroplex::step {

void begin_gradients(Assembly& a, int64_t microbatches) {
  a.families.begin_step(microbatches);
  for (const at::Tensor& counts : a.step_counts) counts.zero_();
}

namespace {

// Gradients of one dtype that are summed over the same ranks.
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

// Sums the gradients that are spread over several ranks: partial gradients (norms under sequence parallelism) and
// shared parameters. Partial gradients over the same ranks are packed into one all-reduce.
void reduce_shared_gradients(Assembly& a) {
  for (const Summands& of : partial_gradients(a.trained)) {
    const comm::Group& group = a.groups().gradients_over(of.axes);
    if (group.size() == 1) continue;
    const at::Tensor flat = at::cat(of.gradients);
    comm::all_reduce(flat, group);
    int64_t at = 0;
    for (const at::Tensor& gradient : of.gradients) {
      gradient.copy_(flat.narrow(0, at, gradient.numel()));
      at += gradient.numel();
    }
  }
  sum_shared_gradients(a.shared, a.trained);
}

}  // namespace

void finish_gradients(Assembly& a) {
  a.families.finish_gradients();
  reduce_shared_gradients(a);
}

}  // namespace metroplex::step
