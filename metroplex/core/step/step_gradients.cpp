#include "step/step.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "comm/collectives.h"

namespace metroplex::step {

void begin_gradients(RankModel& model, int64_t microbatches) {
  model.families.begin_step(microbatches);
  for (const at::Tensor& counts : model.step_counts) counts.zero_();
  if (model.rounding_meter) model.rounding_meter->clear();
}

namespace {

// Gradients of one dtype that are summed over the same ranks.
struct Summands {
  topology::AxisSet axes;
  std::vector<at::Tensor> gradients;
};

std::vector<Summands> partial_gradients(const std::vector<distributed::Shard>& slices) {
  std::vector<Summands> all;
  for (const distributed::Shard& slice : slices) {
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
void reduce_shared_gradients(const ProcessContext& process, const RankModel& model,
                             const Optimization& optimization) {
  for (const Summands& of : partial_gradients(optimization.trained)) {
    const comm::Group& group = process.groups().gradient_group(of.axes);
    if (group.size() == 1) continue;
    const at::Tensor flat = at::cat(of.gradients);
    comm::all_reduce(flat, group);
    int64_t at = 0;
    for (const at::Tensor& gradient : of.gradients) {
      gradient.copy_(flat.narrow(0, at, gradient.numel()));
      at += gradient.numel();
    }
  }
  sum_shared_gradients(model.shared, optimization.trained);
}

}  // namespace

void finish_gradients(const ProcessContext& process, RankModel& model, const Optimization& optimization) {
  model.families.finish_gradients();
  reduce_shared_gradients(process, model, optimization);
}

}  // namespace metroplex::step
