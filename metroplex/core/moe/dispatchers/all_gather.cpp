// Every rank gathers the tokens of all ranks and selects the rows of its experts. The host reads no counts, but
// buffers have space for the maximum number of rows. Results are summed over the ranks by a reduce-scatter.

#include "moe/dispatcher.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "nn/autograd_node.h"
#include "comm/collectives.h"

namespace metroplex::moe {
namespace {

// Gathers along the first dimension; backward sums the gradients of all ranks for the local rows.
at::Tensor gathered(const at::Tensor& x, const comm::Group& group) {
  const at::Tensor out = comm::all_gather(x.detach(), 0, group);
  if (group.size() == 1) return x;
  return nn::attach(out, {x}, [group](const at::Tensor& dy) -> nn::Gradients {
    return {comm::reduce_scatter(dy.contiguous(), 0, group)};
  });
}

at::Tensor summed(const at::Tensor& x, const comm::Group& group) {
  if (group.size() == 1) return x;
  const at::Tensor out = comm::reduce_scatter(x.detach(), 0, group);
  return nn::attach(out, {x}, [group](const at::Tensor& dy) -> nn::Gradients {
    return {comm::all_gather(dy.contiguous(), 0, group)};
  });
}

class AllGatherDispatcher final : public Dispatcher {
 public:
  using Dispatcher::Dispatcher;

  DispatchPlan plan(const at::Tensor& experts) const override {
    const int64_t local = spec_.local_groups();
    return {
        permutation(
            spec_.target, comm::all_gather(experts, 0, spec_.experts.experts),
            {.first = spec_.experts.ep_rank() * local, .num_experts = local, .num_rows = most_rows(experts.size(0))}),
        {}};
  }

  DispatchUnderWay start_dispatch(const at::Tensor& x, const at::Tensor& probs, DispatchPlan plan) const override {
    const comm::Group& group = spec_.experts.experts;
    const at::Tensor tokens = gathered(x, group);
    return {std::move(plan), tokens, gathered(probs, group), {}, {}};
  }

  Dispatched finish_dispatch(DispatchUnderWay way) const override {
    const Permutation& permutation = way.plan.permutation;
    return {{permute(spec_.target, way.x, permutation), permute_probs(spec_.target, way.probs, permutation),
             permutation.counts},
            {permutation, {}, {}}};
  }

  at::Tensor combine(const at::Tensor& y, const CombinePlan& back) const override {
    return summed(unpermute(spec_.target, y, back.permutation), spec_.experts.experts);
  }

 private:
  // Maximum rows that can arrive with `tokens` tokens per rank.
  int64_t most_rows(int64_t tokens) const {
    const int64_t local = spec_.local_groups(), capacity = spec_.capacity(tokens);
    const int64_t of_a_rank = tokens * std::min(spec_.topk(), local);
    return spec_.experts.experts.size() * (capacity > 0 ? std::min(of_a_rank, local * capacity) : of_a_rank);
  }
};

}  // namespace

std::unique_ptr<Dispatcher> make_all_gather(DispatcherSpec spec) {
  return std::make_unique<AllGatherDispatcher>(std::move(spec));
}

}  // namespace metroplex::moe
