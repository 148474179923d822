// Rows are sent by counts that stay on the device, into buffers whose size depends only on the number of tokens. All
// ranks have the counts of every rank. If a buffer is too small, they all drop the same rows and detect it. r: ranks
// of a layer's experts, p: ep ranks, c: destination slots per rank.
#include "moe/dispatcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/any.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "comm/collectives.h"
#include "kernels/step_state.h"

namespace metroplex::moe {

namespace {

class StaticBufferDispatcher final : public Dispatcher {
 public:
  explicit StaticBufferDispatcher(const DispatcherSpec& spec)
      : Dispatcher(spec), exact_(make_dispatcher(config::TokenDispatcher::alltoall, spec)) {
    const auto on_device = at::TensorOptions().device(spec_.target.memory());
    flag_ = spec_.experts.step_flags.defined() && !drops() ? spec_.experts.step_flags.narrow(0, kernels::kOverflow, 1)
                                                           : at::zeros({1}, on_device.dtype(at::kInt));
    wanted_ = at::zeros({spec_.experts.ep}, on_device.dtype(at::kLong));
    if (!spec_.experts.buffers) return;
    entry_ = spec_.experts.buffers->layers.size();
    spec_.experts.buffers->layers.push_back({spec_.layer, wanted_});
  }

  void collect_step_counts(std::vector<at::Tensor>& counts) const override { counts.push_back(wanted_); }

  DispatchPlan plan(const at::Tensor& experts) const override {
    if (repeats()) return exact_->plan(experts);
    const at::NoGradGuard no_grad;
    const int64_t tokens = experts.size(0), most = most_of_pair(tokens);
    if (spec_.experts.buffers) {
      StaticBuffers::Layer& entry = spec_.experts.buffers->layers[entry_];
      entry.room = room(tokens), entry.even = config::even_rows(spec_.model, tokens, spec_.experts.etp);
    }
    const bool may_overflow = room(tokens) < ranks() * most || pair_capacity(tokens) < most;
    if (!may_overflow) {
      const Permutation p = permutation(spec_.target, experts, permute_how(experts));
      return {p, comm::all_gather(p.counts.view({1, -1}), 0, spec_.experts.experts)};
    }
    const Permutation all =
        permutation(spec_.target, experts, {.num_experts = spec_.columns(), .num_rows = experts.numel()});
    const at::Tensor kept = fitting(comm::all_gather(all.counts.view({1, -1}), 0, spec_.experts.experts), tokens);
    const at::Tensor fit = first_of_each(experts, all, kept.select(0, rank()));
    const at::Tensor lost = drops() ? fit.lt(0).bitwise_and_(experts.ge(0)) : at::Tensor();
    return {permutation(spec_.target, fit, permute_how(fit)), kept, {}, lost};
  }

  DispatchUnderWay start_dispatch(const at::Tensor& x, const at::Tensor& probs, DispatchPlan plan) const override {
    if (repeats()) return exact_->start_dispatch(x, probs, std::move(plan));
    DispatchUnderWay way;
    const CountedExchange how = make_exchange(plan);
    const PermutedRows rows = permute(spec_.target, x, probs, plan.permutation);
    way.counted = {rows.x, how, spec_.experts.experts, flag_, spec_.dispatch_formats()};
    way.counted_probs = {rows.probs, how, spec_.experts.experts, flag_};
    way.plan = std::move(plan);
    return way;
  }

  Dispatched finish_dispatch(DispatchUnderWay way) const override {
    if (repeats()) return exact_->finish_dispatch(std::move(way));
    const at::Tensor came = way.counted.finish(), probs = way.counted_probs.finish();
    const int64_t local = spec_.local_groups();
    const Permutation sorted =
        regroup(spec_.target, way.plan.rank_counts.narrow(1, spec_.experts.ep_rank() * local, local),
                {.num_in = came.size(0), .num_out = came.size(0)});
    const CountedExchange how = make_exchange(way.plan);
    const PermutedRows rows = permute(spec_.target, came, probs.view({-1, 1}), sorted);
    return {{rows.x, rows.probs, sorted.counts}, {way.plan.permutation, sorted, {}, how.sent, how.came}};
  }

  at::Tensor combine(const at::Tensor& y, const CombinePlan& back) const override {
    if (repeats()) return exact_->combine(y, back);
    const Permutation& permutation = back.permutation;
    const CountedExchange how{back.came, back.sent, permutation.source.numel(),
                              pair_capacity(permutation.rows.size(0))};
    CountedRowsUnderWay rows(unpermute(spec_.target, y, back.regroup), how, spec_.experts.experts, flag_,
                             spec_.combine_formats());
    return unpermute(spec_.target, rows.finish(), permutation);
  }

 private:
  int ranks() const { return spec_.experts.experts.size(); }
  int rank() const { return spec_.experts.experts.index(); }
  bool drops() const { return spec_.model.moe_overflow_policy == config::OverflowPolicy::drop; }
  bool repeats() const { return spec_.experts.buffers && spec_.experts.buffers->repeats; }
  int64_t room(int64_t tokens) const {
    return config::rank_capacity(spec_.model, tokens, spec_.experts.etp, spec_.experts.ep);
  }
  int64_t pair_capacity(int64_t tokens) const {
    return config::rank_pair_capacity(spec_.model, tokens, spec_.experts.ep);
  }
  int64_t most_of_pair(int64_t tokens) const { return tokens * std::min(spec_.topk(), spec_.local_groups()); }

  PermuteHow permute_how(const at::Tensor& experts) const {
    PermuteHow how;
    how.num_experts = spec_.columns();
    how.chunk = spec_.local_groups();
    how.copies = spec_.experts.etp;  // each etp shard of an expert gets its rows
    how.num_rows = how.copies * experts.numel();
    return how;
  }

  // Maps counts [r, p c] of rows that each rank has to send to counts of rows that fit. A pair sends at most its
  // capacity, first rows first. A destination accepts rows in group order until its buffer is full.
  at::Tensor fitting(const at::Tensor& counts, int64_t tokens) const {
    const at::Tensor columns = counts.view({ranks(), spec_.experts.ep, spec_.local_groups()});
    const at::Tensor wanted = columns.sum(2), sent = wanted.clamp_max(pair_capacity(tokens));  // [r, p]
    const at::Tensor before = sent.cumsum(0) - sent;
    const at::Tensor fits = at::minimum(sent, at::rsub(before, room(tokens)).clamp_min(0));
    flag_.bitwise_or_(fits.lt(wanted).any().to(at::kInt));
    wanted_.copy_(at::maximum(wanted_, wanted.sum(0)));
    const at::Tensor limit = fits.unsqueeze(2), ends = columns.cumsum(2);
    return (at::minimum(ends, limit) - at::minimum(ends - columns, limit)).view(counts.sizes());
  }

  // Returns experts [T, k] with -1 for assignments after the first kept[c] of each destination slot, in token order.
  // `all` is their permutation without copies.
  static at::Tensor first_of_each(const at::Tensor& experts, const Permutation& all, const at::Tensor& kept) {
    const at::Tensor flat = experts.clamp_min(0).view(-1);
    const at::Tensor end = all.counts.cumsum(0) - all.counts + kept;  // row after the last kept one, per slot
    const at::Tensor ends = end.gather(0, flat).view(experts.sizes());
    return experts.masked_fill(all.rows.ge(ends), -1);
  }

  CountedExchange make_exchange(const DispatchPlan& plan) const {
    const at::NoGradGuard no_grad;
    const int64_t tokens = plan.permutation.rows.size(0);
    const at::Tensor rows = plan.rank_counts.view({ranks(), spec_.experts.ep, spec_.local_groups()}).sum(2);
    const at::Tensor to_parts = rows.select(0, rank());
    const at::Tensor sent = to_parts.unsqueeze(1).expand({-1, spec_.experts.etp}).reshape(-1);
    return {sent.contiguous(), rows.select(1, spec_.experts.ep_rank()).contiguous(), room(tokens),
            pair_capacity(tokens)};
  }

  size_t entry_ = 0;                   // index in StaticBuffers::layers
  std::unique_ptr<Dispatcher> exact_;  // used while a step is repeated
  at::Tensor flag_;                    // [1] int32
  at::Tensor wanted_;                  // [p] int64: maximum rows per ep rank in this step, uncapped
};

}  // namespace

std::unique_ptr<Dispatcher> make_static_buffer(DispatcherSpec spec) {
  return std::make_unique<StaticBufferDispatcher>(spec);
}

}  // namespace metroplex::moe
