#include "comm/backends/owned_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <utility>

namespace metroplex::comm {

std::vector<std::vector<Hop>> relay_hops(std::span<const int32_t> owners, int64_t slots, int64_t home) {
  std::map<int32_t, std::vector<int64_t>> wanted;  // for each row, the slots of all members that request it
  for (size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] >= 0) wanted[owners[i]].push_back(static_cast<int64_t>(i));
  }
  std::vector<std::vector<Hop>> rounds;
  for (const auto& [row, by] : wanted) {
    // Holder 0 is the owner, holder i is slot by[i - 1]. Each of the `holders` so far sends the row to one more slot.
    size_t round = 0;
    for (size_t holders = 1; holders <= by.size(); holders *= 2, ++round) {
      if (rounds.size() <= round) rounds.emplace_back();
      for (size_t i = 0; i < holders && holders + i <= by.size(); ++i) {
        const int64_t to = by[holders + i - 1];
        Hop hop{static_cast<int>(row / home), static_cast<int>(to / slots), row % home, -1, to % slots};
        if (i > 0) hop.from = static_cast<int>(by[i - 1] / slots), hop.from_slot = by[i - 1] % slots;
        rounds[round].push_back(hop);
      }
    }
  }
  return rounds;
}

std::span<const int32_t> owner_numbers(const at::Tensor& owners) {
  return {owners.const_data_ptr<int32_t>(), static_cast<size_t>(owners.numel())};
}

namespace {

// The first round starts at once; each later one starts when the previous round has completed.
class Relay final : public Pending {
 public:
  Relay(GroupBackend& backend, at::Tensor out, at::Tensor in, std::vector<std::vector<Hop>> rounds, int index)
      : backend_(backend), out_(std::move(out)), in_(std::move(in)), rounds_(std::move(rounds)), index_(index) {
    begin();
  }
  void wait() override {
    while (next_ <= rounds_.size()) {
      if (under_way_) under_way_->wait();
      under_way_ = nullptr;
      begin();
    }
  }

 private:
  void begin() {
    if (next_++ >= rounds_.size()) return;
    std::vector<P2pOp> ops;
    for (const Hop& hop : rounds_[next_ - 1]) {
      if (hop.from == index_) ops.push_back({true, hop.from_slot < 0 ? in_[hop.row] : out_[hop.from_slot], hop.to});
      if (hop.to == index_) ops.push_back({false, out_[hop.to_slot], hop.from});
    }
    under_way_ = backend_.batch_p2p(std::move(ops));
  }

  GroupBackend& backend_;
  at::Tensor out_, in_;
  std::vector<std::vector<Hop>> rounds_;
  int index_;
  size_t next_ = 0;
  PendingPtr under_way_;
};

// Adds the received rows to this member's rows once all have arrived, in ascending slot order.
class Return final : public Pending {
 public:
  Return(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners, int index)
      : sum_(std::move(sum)) {
    const int64_t slots = in.size(0), home = sum_.size(0);
    const std::span<const int32_t> numbers = owner_numbers(owners);
    std::vector<P2pOp> ops;
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] < 0) continue;
      const int of = static_cast<int>(static_cast<int64_t>(i) / slots), owner = static_cast<int>(numbers[i] / home);
      if (of == index) ops.push_back({true, in[static_cast<int64_t>(i) % slots], owner});
      if (owner != index) continue;
      came_.emplace_back(numbers[i] % home, at::empty_like(in[0]));
      ops.push_back({false, came_.back().second, of});
    }
    under_way_ = backend.batch_p2p(std::move(ops));
  }
  void wait() override {
    const at::NoGradGuard no_grad;
    if (under_way_) under_way_->wait();
    for (const auto& [row, values] : came_) sum_[row].add_(values);
    came_.clear();
    under_way_ = nullptr;
  }

 private:
  at::Tensor sum_;
  std::vector<std::pair<int64_t, at::Tensor>> came_;
  PendingPtr under_way_;
};

// For owners on a device, which the host cannot read: every member sends s rows to each of n members, most of them
// unused. owners is viewed as [n, s].
class FetchBlocks final : public Pending {
 public:
  FetchBlocks(GroupBackend& backend, at::Tensor out, const at::Tensor& in, const at::Tensor& owners, int index)
      : out_(std::move(out)) {
    const int64_t slots = out_.size(0), home = in.size(0), members = owners.numel() / slots;
    const at::Tensor numbers = owners.to(at::kLong);
    const at::Tensor mine = numbers.sub(index * home).clamp(0, home - 1);
    const std::vector<int64_t> splits(static_cast<size_t>(members), slots);
    sent_ = in.index_select(0, mine);
    came_ = at::empty_like(sent_);
    const at::Tensor wanted = numbers.view({members, slots})[index].clamp_min(0);
    from_ = at::div(wanted, home, "floor").mul_(slots).add_(at::arange(slots, wanted.options()));
    under_way_ = backend.all_to_all(came_, sent_, splits, splits);
  }
  void wait() override {
    if (!came_.defined()) return;
    const at::NoGradGuard no_grad;
    if (under_way_) under_way_->wait();
    at::index_select_out(out_, came_, 0, from_);
    under_way_ = nullptr;
    sent_ = came_ = at::Tensor();
  }

 private:
  at::Tensor out_, sent_, came_, from_;
  PendingPtr under_way_;
};

class ReturnBlocks final : public Pending {
 public:
  ReturnBlocks(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners, int index)
      : sum_(std::move(sum)), slots_(in.size(0)) {
    const int64_t home = sum_.size(0), members = owners.numel() / slots_;
    sent_ = in.view({slots_, -1}).repeat({members, 1});
    came_ = at::empty_like(sent_);
    const at::Tensor numbers = owners.to(at::kLong).sub(index * home);
    here_ = numbers.ge(0).logical_and(numbers.lt(home));
    row_ = numbers.clamp(0, home - 1);
    const std::vector<int64_t> splits(static_cast<size_t>(members), slots_);
    under_way_ = backend.all_to_all(came_, sent_, splits, splits);
  }
  // The slots of one member have different rows, so index_add_ adds one number or zero to each element.
  void wait() override {
    if (!came_.defined()) return;
    const at::NoGradGuard no_grad;
    if (under_way_) under_way_->wait();
    const at::Tensor flat = sum_.view({sum_.size(0), -1}), none = at::zeros({}, came_.options());
    for (int64_t first = 0; first < came_.size(0); first += slots_) {
      const at::Tensor here = here_.narrow(0, first, slots_).unsqueeze(1);
      flat.index_add_(0, row_.narrow(0, first, slots_), at::where(here, came_.narrow(0, first, slots_), none));
    }
    under_way_ = nullptr;
    sent_ = came_ = at::Tensor();
  }

 private:
  at::Tensor sum_;
  int64_t slots_;
  at::Tensor sent_, came_, here_, row_;
  PendingPtr under_way_;
};

}  // namespace

PendingPtr fetch_by_hops(GroupBackend& backend, at::Tensor out, at::Tensor in, const at::Tensor& owners, int index) {
  std::vector<std::vector<Hop>> rounds = relay_hops(owner_numbers(owners), out.size(0), in.size(0));
  return std::make_shared<Relay>(backend, std::move(out), std::move(in), std::move(rounds), index);
}
PendingPtr fetch_by_blocks(GroupBackend& backend, at::Tensor out, const at::Tensor& in, const at::Tensor& owners,
                           int index) {
  return std::make_shared<FetchBlocks>(backend, std::move(out), in, owners, index);
}
PendingPtr return_by_messages(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners,
                              int index) {
  return std::make_shared<Return>(backend, std::move(sum), in, owners, index);
}
PendingPtr return_by_blocks(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners,
                            int index) {
  return std::make_shared<ReturnBlocks>(backend, std::move(sum), in, owners, index);
}

PendingPtr GroupBackend::fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int index) {
  const at::NoGradGuard no_grad;
  if (in.is_cpu()) return fetch_by_hops(*this, std::move(out), std::move(in), owners, index);
  return fetch_by_blocks(*this, std::move(out), in, owners, index);
}

PendingPtr GroupBackend::return_rows(at::Tensor sum, at::Tensor in, at::Tensor owners, int index) {
  const at::NoGradGuard no_grad;
  if (in.is_cpu()) return return_by_messages(*this, std::move(sum), in, owners, index);
  return return_by_blocks(*this, std::move(sum), in, owners, index);
}

}  // namespace metroplex::comm
