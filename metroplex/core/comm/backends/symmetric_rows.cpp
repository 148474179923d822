#include "comm/backends/symmetric_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace metroplex::comm {
namespace {

// Returns the differences of cumulative sums along dim 0.
at::Tensor steps_of(const at::Tensor& sums) {
  const at::Tensor steps = sums.clone();
  const int64_t others = sums.size(0) - 1;
  steps.narrow(0, 1, others).sub_(sums.narrow(0, 0, others));
  return steps;
}

class SymmetricPending final : public Pending {
 public:
  SymmetricPending(device::SideStream::Mark end, at::Tensor overflow, at::Tensor found, std::vector<at::Tensor> held)
      : end_(std::move(end)), overflow_(std::move(overflow)), found_(std::move(found)), held_(std::move(held)) {}
  void wait() override {
    if (!found_.defined()) return;
    const at::NoGradGuard no_grad;
    end_.block();
    overflow_.bitwise_or_(found_.view_as(overflow_));
    found_.reset();
    held_.clear();
  }

 private:
  device::SideStream::Mark end_;
  at::Tensor overflow_, found_;
  std::vector<at::Tensor> held_;  // keeps memory of the current stream allocated until the stream has waited
};

}  // namespace

RowsPlan plan_rows(const at::Tensor& told, int index, int64_t capacity) {
  const int64_t n = told.size(0);
  const at::Tensor there = told.narrow(1, 0, n), asked = told.narrow(1, n, n), room = told.select(1, 2 * n);
  const at::Tensor sums = there.clamp_max(capacity).cumsum(0);  // [from, to]: rows for `to` if its capacity allows
  const at::Tensor moved = steps_of(at::minimum(sums, room));
  const at::Tensor here = there.select(1, index), mine = there.select(0, index);
  const at::Tensor crowded = sums.select(0, n - 1).select(0, index).gt(room.select(0, index));
  return {moved.select(0, index), mine.cumsum(0).sub_(mine), moved.select(1, index),
          crowded.logical_or_(here.gt(capacity).any())
              .logical_or_(asked.select(0, index).gt(mine.clamp_max(capacity)).any())};
}

SymmetricRows::Buffers& SymmetricRows::buffers_of(const Kind& kind, int64_t rows) {
  Buffers& b = buffers_[kind];
  if (!b.out.defined()) {
    b.rows = std::max(least_rows_, calls_.host_max(rows));
    std::vector<int64_t> shape{b.rows};
    shape.insert(shape.end(), std::get<1>(kind).begin(), std::get<1>(kind).end());
    b.in = calls_.allocate(shape, std::get<2>(kind));
    b.in_splits = calls_.allocate({2, members_}, at::kLong);
    b.out_splits = calls_.allocate({2, members_}, at::kLong);
    b.out = calls_.allocate(shape, std::get<2>(kind));
  }
  MPX_ASSERT(rows <= b.rows, "an exchange of ", rows, " rows, but the first of its kind had ", b.rows);
  return b;
}

PendingPtr SymmetricRows::exchange(CountedRows out, const CountedRows& in, int64_t capacity, at::Tensor overflow) {
  const at::NoGradGuard no_grad;
  const int64_t length = in.rows.size(0), room = out.rows.size(0);
  Buffers& b = buffers_of({capacity, in.rows.sizes().slice(1).vec(), in.rows.scalar_type()}, std::max(length, room));
  const at::Tensor found = at::empty({}, in.counts.options().dtype(at::kInt));
  stream_.wait_for_current();
  stream_.run([&] {
    const at::Tensor there = steps_of(in.counts.cumsum(0).clamp_max_(length));
    const at::Tensor told = calls_.all_gather(at::cat({there, in.counts, at::full({1}, room, in.counts.options())}));
    const RowsPlan plan = plan_rows(told.view({members_, -1}), index_, capacity);
    b.in.narrow(0, 0, length).copy_(in.rows);
    b.in_splits.select(0, 0).copy_(plan.splits);
    b.in_splits.select(0, 1).copy_(plan.offsets);
    calls_.exchange(b.in, b.out, b.in_splits, b.out_splits);
    out.rows.copy_(b.out.narrow(0, 0, room));
    out.counts.copy_(plan.received);
    found.copy_(plan.overflow);
  });
  return std::make_shared<SymmetricPending>(stream_.mark(), std::move(overflow), found,
                                            std::vector<at::Tensor>{out.rows, out.counts, in.rows, in.counts});
}

}  // namespace metroplex::comm
