#include "moe/dispatchers/exchanging.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "base/error.h"
#include "comm/collectives.h"
#include "cuda/host_read.h"
#include "moe/permutation_values.h"

namespace metroplex::moe {
namespace {

constexpr const char* kRowTable = "dispatch_table";  // [ranks, ranks] int64 on the host: rows from each to each

class ExchangingDispatcher final : public Dispatcher {
 public:
  ExchangingDispatcher(DispatcherSpec spec, ExchangeRows* way) : Dispatcher(std::move(spec)), way_(way) {}
  // Without padding the lengths of the messages are numbers of the device.
  bool needs_host() const override { return !spec_.pads_to_capacity() && ranks() > 1; }

  Dispatched send(const at::Tensor& x, const Routing& routing, const std::function<void()>& meanwhile) override {
    const int64_t tokens = x.size(0), capacity = spec_.pads_to_capacity() ? spec_.capacity(tokens) : 0;
    Permutation p = permutation(spec_.target, routing.experts, permute_how(routing.experts, capacity));
    const at::Tensor counts = all_counts(p.counts);
    // What is dropped makes the rows to be sent fewer than there is room for: their number is asked for at once, and
    // otherwise only when they are sent.
    const bool early = capacity == 0 && spec_.model.has_capacity();
    RowTable table(ranks());
    if (early) {
      table = row_table(counts, routing.experts.numel(), capacity);
      p.source = p.source.narrow(0, 0, table.sent(rank()));
    }
    const at::Tensor rows = permute(spec_.target, x, p), probs = permute_probs(spec_.target, routing.probs, p);
    if (!early) table = row_table(counts, routing.experts.numel(), capacity);

    const at::Tensor came = sent(rows, table, meanwhile), probs_came = sent(probs, table, {});
    const int64_t local = spec_.local_experts();
    const Permutation sorted = regroup(spec_.target, counts.narrow(1, spec_.experts.ep_rank() * local, local),
                                       {.capacity = capacity, .num_in = came.size(0), .num_out = came.size(0)});
    Dispatched out{{permute(spec_.target, came, sorted),
                    permute_probs(spec_.target, probs_came.view({-1, 1}), sorted), sorted.counts},
                   {}};
    add_permutation(out.state, "dispatch", p);
    add_permutation(out.state, "regroup", sorted);
    out.state.add(kRowTable, stored(table));
    return out;
  }

  at::Tensor bring_back(const at::Tensor& y, const nn::Values& state) override {
    const Permutation p = permutation_in(state, "dispatch", spec_.topk()),
                      sorted = permutation_in(state, "regroup", 1);
    const RowTable table = loaded(state.tensor(kRowTable), p.rows.size(0) * spec_.topk());
    return unpermute(spec_.target, sent(unpermute(spec_.target, y, sorted), table.turned(), {}), p);
  }

 private:
  int ranks() const { return spec_.experts.experts.size(); }
  int rank() const { return spec_.experts.experts.index(); }

  // Every part of an expert gets its rows: a copy for each rank of etp.
  PermuteHow permute_how(const at::Tensor& experts, int64_t capacity) const {
    PermuteHow how;
    how.num_experts = spec_.num_experts();
    how.chunk = spec_.local_experts();
    how.copies = spec_.experts.etp;
    how.capacity = capacity;
    how.num_rows = how.copies * (capacity > 0 ? spec_.num_experts() * capacity : experts.numel());
    return how;
  }

  // [ranks, experts]: assignments of each rank.
  at::Tensor all_counts(const at::Tensor& own) const {
    return comm::all_gather(own.view({1, -1}), 0, spec_.experts.experts);
  }

  at::Tensor sent(const at::Tensor& x, const RowTable& table, const std::function<void()>& meanwhile) const {
    if (ranks() > 1) return exchange(x, table, spec_.experts, way_, meanwhile);
    if (meanwhile) meanwhile();
    return x;
  }

  // The one point where the host waits. Values are missing on the meta device: there all experts get the same share.
  RowTable row_table(const at::Tensor& counts, int64_t assignments, int64_t capacity) const {
    const int64_t local = spec_.local_experts();
    if (capacity > 0) return even_table(local * capacity, 0);
    if (spec_.target.meta) {
      const at::Tensor as_read = at::empty_like(counts);
      return even_table(assignments / spec_.experts.ep, assignments % spec_.experts.ep);
    }
    const at::Tensor on_host = cuda::read_on_host(spec_.target, counts);
    const int64_t* numbers = on_host.const_data_ptr<int64_t>();
    RowTable table(ranks());
    for (int from = 0; from < ranks(); ++from) {
      for (int to = 0; to < ranks(); ++to) {
        const int64_t* begin = numbers + from * spec_.num_experts() + to / spec_.experts.etp * local;
        for (int64_t e = 0; e < local; ++e) table.at(from, to) += begin[e];
      }
    }
    return table;
  }

  // The same number of rows to each, one more to the first `rest` ranks of ep.
  RowTable even_table(int64_t rows, int64_t rest) const {
    RowTable table(ranks());
    for (int from = 0; from < ranks(); ++from) {
      for (int to = 0; to < ranks(); ++to) table.at(from, to) = rows + (to / spec_.experts.etp < rest ? 1 : 0);
    }
    return table;
  }

  at::Tensor stored(const RowTable& table) const {
    const int n = ranks();
    const at::Device place = spec_.target.gpu() && !spec_.target.meta ? at::Device(at::kCPU) : spec_.target.memory();
    const at::Tensor out = at::empty({n, n}, at::TensorOptions().dtype(at::kLong).device(place));
    if (spec_.target.meta) return out;
    auto* numbers = out.mutable_data_ptr<int64_t>();
    for (int from = 0; from < n; ++from) {
      for (int to = 0; to < n; ++to) numbers[from * n + to] = table.at(from, to);
    }
    return out;
  }

  RowTable loaded(const at::Tensor& stored, int64_t assignments) const {
    const int n = ranks();
    if (spec_.target.meta) {
      if (spec_.pads_to_capacity())
        return even_table(spec_.local_experts() * spec_.capacity(assignments / spec_.topk()), 0);
      return even_table(assignments / spec_.experts.ep, assignments % spec_.experts.ep);
    }
    const int64_t* numbers = stored.const_data_ptr<int64_t>();
    RowTable table(n);
    for (int from = 0; from < n; ++from) {
      for (int to = 0; to < n; ++to) table.at(from, to) = numbers[from * n + to];
    }
    return table;
  }

  ExchangeRows* way_;
};

}  // namespace

std::unique_ptr<Dispatcher> make_exchanging(DispatcherSpec spec, ExchangeRows* way) {
  return std::make_unique<ExchangingDispatcher>(std::move(spec), way);
}

}  // namespace metroplex::moe
