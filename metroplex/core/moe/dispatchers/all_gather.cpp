// Every rank gathers the tokens of all ranks and selects the rows of its experts. The host reads no counts, but
// buffers have space for the maximum number of rows. Results are summed over the ranks by a reduce-scatter.

#include "moe/dispatcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "device/turns.h"

namespace metroplex::moe {
namespace {

at::Tensor empty_rows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = rows;
  return at::empty(shape, x.options());
}

void wait_in_turn(comm::Handle handle) {
  device::yield_turn();
  handle.wait();
}

at::Tensor gather_rows(const at::Tensor& x, const comm::Group& group, const device::Target& target,
                       config::RowDtype format) {
  const at::Tensor sent = encode_rows(target, format, x), out = empty_rows(sent, x.size(0) * group.size());
  wait_in_turn(comm::all_gather_into_async(out, sent, group));
  return decode_rows(target, format, out, x.scalar_type());
}

at::Tensor sum_rows(const at::Tensor& x, const comm::Group& group) {
  const at::Tensor out = empty_rows(x, x.size(0) / group.size());
  wait_in_turn(comm::reduce_scatter_into_async(out, x, group));
  return out;
}

// Gathers along the first dimension; backward sums the gradients of all ranks for the local rows.
at::Tensor gathered(const at::Tensor& x, const comm::Group& group, const RowFormats& formats = {}) {
  if (group.size() == 1) return round_rows(formats, x);
  const at::Tensor out = gather_rows(x.detach().contiguous(), group, formats.target, formats.forward);
  return nn::attach(out, {x},
                    [group](const at::Tensor& dy) -> nn::Gradients { return {sum_rows(dy.contiguous(), group)}; });
}

at::Tensor summed(const at::Tensor& x, const comm::Group& group, const RowFormats& formats) {
  if (group.size() == 1) return round_rows(formats, x);
  const at::Tensor out = sum_rows(x.detach().contiguous(), group);
  return nn::attach(out, {x}, [group, formats](const at::Tensor& dy) -> nn::Gradients {
    return {gather_rows(dy.contiguous(), group, formats.target, formats.backward)};
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
    const at::Tensor tokens = gathered(x, group, spec_.dispatch_formats());
    return {std::move(plan), tokens, gathered(probs, group), {}, {}};
  }

  Dispatched finish_dispatch(DispatchUnderWay way) const override {
    const Permutation& permutation = way.plan.permutation;
    const PermutedRows rows = permute(spec_.target, way.x, way.probs, permutation);
    return {{rows.x, rows.probs, permutation.counts}, {permutation, {}, {}}};
  }

  at::Tensor combine(const at::Tensor& y, const CombinePlan& back) const override {
    return summed(unpermute(spec_.target, y, back.permutation), spec_.experts.experts, spec_.combine_formats());
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
