// exchange_rows for backends that need transfer sizes up front. Each member sends `capacity` rows to each
// member, and the receiver keeps the valid ones. Shapes: n members, c capacity, R rows of out; counts are [n].
#include "comm/backends/backend.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace metroplex::comm {
namespace {

// Returns the counts whose cumulative sums are `ends`.
at::Tensor differences(const at::Tensor& ends) {
  const int64_t others = ends.numel() - 1;
  const at::Tensor counts = ends.clone();
  counts.narrow(0, 1, others).sub_(ends.narrow(0, 0, others));
  return counts;
}

// Returns [n*c, ...]. The rows for member i start at row i*c and are padded to c with arbitrary rows.
at::Tensor pad_rows(const CountedRows& in, int64_t capacity) {
  const int64_t length = in.rows.size(0), all = in.counts.numel() * capacity;
  if (length == 0) {
    std::vector<int64_t> shape = in.rows.sizes().vec();
    shape[0] = all;
    return at::empty(shape, in.rows.options());
  }
  const at::Tensor begins = in.counts.cumsum(0).sub_(in.counts);
  const at::Tensor row_indices = begins.unsqueeze(1).add(at::arange(capacity, in.counts.options()));
  return in.rows.index_select(0, row_indices.clamp_max_(length - 1).view(-1));
}

class EqualCapacity final : public Pending {
 public:
  CountedRows out;
  int64_t capacity = 0;
  at::Tensor overflow;
  at::Tensor requested, available,
      incoming;               // per member: rows requested, requested rows that exist, rows sent to this rank
  at::Tensor sent, received;  // [n c, ...]
  PendingPtr counts, rows;

  void wait() override {
    if (!received.defined()) return;
    const at::NoGradGuard no_grad;
    for (const PendingPtr& pending : {counts, rows}) {
      if (pending) pending->wait();
    }
    take();
    *this = {};
  }

 private:
  void take() {
    const int64_t max_rows = out.rows.size(0), last = incoming.numel() - 1;
    const at::Tensor sums = incoming.clamp_max(capacity).cumsum(0), ends = sums.clamp_max(max_rows);
    const at::Tensor receiver_overflow = sums.select(0, last).gt(max_rows).logical_or_(incoming.gt(capacity).any());
    overflow.bitwise_or_(requested.gt(available.clamp_max(capacity))
                             .any()
                             .logical_or_(receiver_overflow)
                             .to(at::kInt)
                             .view_as(overflow));
    out.counts.copy_(differences(ends));
    if (max_rows == 0) return;
    const at::Tensor row_indices = at::arange(max_rows, incoming.options());
    const at::Tensor from = at::searchsorted(ends, row_indices, /*out_int32=*/false, /*right=*/true).clamp_max_(last);
    const at::Tensor begins = ends.sub(out.counts).index_select(0, from);
    at::index_select_out(out.rows, received, 0,
                         row_indices.sub_(begins).clamp_max_(capacity - 1).add_(from, capacity));
  }
};

}  // namespace

PendingPtr GroupBackend::exchange_rows(CountedRows out, CountedRows in, int64_t capacity, at::Tensor overflow) {
  const at::NoGradGuard no_grad;
  const auto members = static_cast<size_t>(in.counts.numel());
  const std::vector<int64_t> one(members, 1), all(members, capacity);
  auto pending = std::make_shared<EqualCapacity>();
  pending->out = std::move(out);
  pending->capacity = capacity;
  pending->overflow = std::move(overflow);
  pending->requested = in.counts;
  pending->available = differences(in.counts.cumsum(0).clamp_max_(in.rows.size(0)));
  pending->incoming = at::empty_like(in.counts);
  pending->sent = pad_rows(in, capacity);
  pending->received = at::empty_like(pending->sent);
  pending->counts = all_to_all(pending->incoming, pending->available, one, one);
  pending->rows = all_to_all(pending->received, pending->sent, all, all);
  return pending;
}

}  // namespace metroplex::comm
