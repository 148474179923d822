#include "moe/dispatcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "device/launch_point.h"

namespace metroplex::moe {
namespace {

class ExchangingDispatcher final : public Dispatcher {
 public:
  ExchangingDispatcher(DispatcherSpec spec, const RowExchange& how) : Dispatcher(std::move(spec)), how_(how) {}

  DispatchPlan plan(const at::Tensor& experts) const override {
    const Permutation p = permutation(spec_.target, experts, permute_how(experts));
    return {p, comm::all_gather(p.counts.view({1, -1}), 0, spec_.experts.experts)};
  }

  DispatchUnderWay start_dispatch(const at::Tensor& x, const at::Tensor& probs, DispatchPlan plan) const override {
    DispatchUnderWay way;
    Permutation& permutation = plan.permutation;
    // If tokens are dropped, fewer rows are sent than the buffer holds. Their number is then read at once; otherwise
    // only when rows are sent. A single rank sends nothing.
    const bool sends = ranks() > 1, early = sends && spec_.model.has_capacity() && !spec_.pads_to_capacity();
    if (early) {
      way.table = row_table(plan.rank_counts, x.size(0));
      permutation.source = permutation.source.narrow(0, 0, way.table.sent(rank()));
    }
    PermutedRows rows = permute(spec_.target, x, probs, permutation);
    way.x = std::move(rows.x), way.probs = std::move(rows.probs);
    if (sends && !early) way.table = row_table(plan.rank_counts, x.size(0));
    way.plan = std::move(plan);
    if (sends) {
      way.rows = RowsUnderWay(std::exchange(way.x, {}), way.table, spec_.experts, how_, spec_.dispatch_formats());
      way.rows_probs = RowsUnderWay(std::exchange(way.probs, {}), way.table, spec_.experts, how_);
    } else {
      way.x = round_rows(spec_.dispatch_formats(), way.x);
    }
    return way;
  }

  Dispatched finish_dispatch(DispatchUnderWay way) const override {
    const at::Tensor came = ranks() > 1 ? way.rows.finish() : way.x,
                     probs = ranks() > 1 ? way.rows_probs.finish() : way.probs;
    const int64_t local = spec_.local_groups();
    const Permutation sorted = regroup(
        spec_.target, way.plan.rank_counts.narrow(1, spec_.experts.ep_rank() * local, local),
        {.capacity = padded_capacity(token_count(way.plan)), .num_in = came.size(0), .num_out = came.size(0)});
    const PermutedRows rows = permute(spec_.target, came, probs.view({-1, 1}), sorted);
    return {{rows.x, rows.probs, sorted.counts}, {way.plan.permutation, sorted, std::move(way.table)}};
  }

  at::Tensor combine(const at::Tensor& y, const CombinePlan& back) const override {
    const at::Tensor rows = unpermute(spec_.target, y, back.regroup);
    if (ranks() == 1) return unpermute(spec_.target, round_rows(spec_.combine_formats(), rows), back.permutation);
    MPX_ASSERT(back.table.members() == ranks(), "combine without the table of its dispatch");
    RowsUnderWay way(rows, back.table.turned(), spec_.experts, how_, spec_.combine_formats());
    return unpermute(spec_.target, way.finish(), back.permutation);
  }

 private:
  int ranks() const { return spec_.experts.experts.size(); }
  int rank() const { return spec_.experts.experts.index(); }

  static int64_t token_count(const DispatchPlan& plan) { return plan.permutation.rows.size(0); }
  // Rows of every expert from every rank if rows are padded; 0: unpadded.
  int64_t padded_capacity(int64_t tokens) const { return spec_.pads_to_capacity() ? spec_.capacity(tokens) : 0; }

  // Each etp shard of an expert gets a copy of its rows.
  PermuteHow permute_how(const at::Tensor& experts) const {
    PermuteHow how;
    how.num_experts = spec_.columns();
    how.chunk = spec_.local_groups();
    how.copies = spec_.experts.etp;
    how.capacity = padded_capacity(experts.size(0));
    how.num_rows = how.copies * (how.capacity > 0 ? spec_.columns() * how.capacity : experts.numel());
    return how;
  }

  // The only host synchronization.
  RowTable row_table(const at::Tensor& counts, int64_t tokens) const {
    if (const auto table = table_without_counts(tokens)) {
      // Makes the allocation of the read on the meta device too, for the memory prediction.
      if (!spec_.pads_to_capacity()) const at::Tensor as_read = at::empty_like(counts);
      return *table;
    }
    const int64_t local = spec_.local_groups();
    const at::Tensor on_host = device::read_on_host(spec_.target, counts);
    const int64_t* numbers = on_host.const_data_ptr<int64_t>();
    RowTable table(ranks());
    for (int from = 0; from < ranks(); ++from) {
      for (int to = 0; to < ranks(); ++to) {
        const int64_t* begin = numbers + from * spec_.columns() + to / spec_.experts.etp * local;
        for (int64_t e = 0; e < local; ++e) table.at(from, to) += begin[e];
      }
    }
    return table;
  }

  // Returns the table if it follows from the number of tokens: with padding, and on the meta device, where all
  // experts get the same share.
  std::optional<RowTable> table_without_counts(int64_t tokens) const {
    if (spec_.pads_to_capacity()) return even_table(spec_.local_groups() * spec_.capacity(tokens), 0);
    if (!spec_.target.meta) return std::nullopt;
    const int64_t assignments = tokens * spec_.topk();
    return even_table(assignments / spec_.experts.ep, assignments % spec_.experts.ep);
  }

  // Sends `rows` rows to each rank, and one more to the first `rest` ep ranks.
  RowTable even_table(int64_t rows, int64_t rest) const {
    RowTable table(ranks());
    for (int from = 0; from < ranks(); ++from) {
      for (int to = 0; to < ranks(); ++to) table.at(from, to) = rows + (to / spec_.experts.etp < rest ? 1 : 0);
    }
    return table;
  }

  const RowExchange& how_;
};

}  // namespace

std::unique_ptr<Dispatcher> make_exchanging(DispatcherSpec spec, const RowExchange& how) {
  return std::make_unique<ExchangingDispatcher>(std::move(spec), how);
}

// Sends each row directly to the ranks of its expert.
std::unique_ptr<Dispatcher> make_all_to_all(DispatcherSpec spec) {
  return make_exchanging(std::move(spec), kDirectExchange);
}

// Rows for another node are first collected, within the own node, on the rank with the destination's index.
std::unique_ptr<Dispatcher> make_hierarchical(DispatcherSpec spec) {
  return make_exchanging(std::move(spec), kExchangeByNode);
}

}  // namespace metroplex::moe
