#include "comm/backends/owned_rows.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <utility>

namespace metroplex::comm {

std::vector<std::vector<Hop>> relay_hops(std::span<const int32_t> owners, int64_t slots, int64_t owned_rows) {
  std::map<int32_t, std::vector<int64_t>> requests;  // for each row, the slots of all members that request it
  for (size_t i = 0; i < owners.size(); ++i) {
    if (owners[i] >= 0) requests[owners[i]].push_back(static_cast<int64_t>(i));
  }
  std::vector<std::vector<Hop>> rounds;
  for (const auto& [row, by] : requests) {
    // Holder 0 is the owner, holder i is slot by[i - 1]. Each of the `holders` so far sends the row to one more slot.
    size_t round = 0;
    for (size_t holders = 1; holders <= by.size(); holders *= 2, ++round) {
      if (rounds.size() <= round) rounds.emplace_back();
      for (size_t i = 0; i < holders && holders + i <= by.size(); ++i) {
        const int64_t to = by[holders + i - 1];
        Hop hop{static_cast<int>(row / owned_rows), static_cast<int>(to / slots), row % owned_rows, -1, to % slots};
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
class RelayFetch final : public Pending {
 public:
  RelayFetch(GroupBackend& backend, at::Tensor out, at::Tensor in, std::vector<std::vector<Hop>> rounds, int index)
      : backend_(backend), out_(std::move(out)), in_(std::move(in)), rounds_(std::move(rounds)), index_(index) {
    begin();
  }
  void wait() override {
    while (next_ <= rounds_.size()) {
      if (pending_) pending_->wait();
      pending_ = nullptr;
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
    pending_ = backend_.batch_p2p(std::move(ops));
  }

  GroupBackend& backend_;
  at::Tensor out_, in_;
  std::vector<std::vector<Hop>> rounds_;
  int index_;
  size_t next_ = 0;
  PendingPtr pending_;
};

// Adds the received rows to this member's rows once all have arrived, in ascending slot order.
class ReturnByMessages final : public Pending {
 public:
  ReturnByMessages(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners, int index)
      : sum_(std::move(sum)) {
    const int64_t slots = in.size(0), owned_rows = sum_.size(0);
    const std::span<const int32_t> numbers = owner_numbers(owners);
    std::vector<P2pOp> ops;
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] < 0) continue;
      const int requester = static_cast<int>(static_cast<int64_t>(i) / slots),
                owner = static_cast<int>(numbers[i] / owned_rows);
      if (requester == index) ops.push_back({true, in[static_cast<int64_t>(i) % slots], owner});
      if (owner != index) continue;
      received_.emplace_back(numbers[i] % owned_rows, at::empty_like(in[0]));
      ops.push_back({false, received_.back().second, requester});
    }
    pending_ = backend.batch_p2p(std::move(ops));
  }
  void wait() override {
    const at::NoGradGuard no_grad;
    if (pending_) pending_->wait();
    for (const auto& [row, values] : received_) sum_[row].add_(values);
    received_.clear();
    pending_ = nullptr;
  }

 private:
  at::Tensor sum_;
  std::vector<std::pair<int64_t, at::Tensor>> received_;
  PendingPtr pending_;
};

// For owners on a device, where the host cannot read them. Every member sends s rows to each of n
// members; most rows are unused. owners is viewed as [n, s].
class FetchBlocks final : public Pending {
 public:
  FetchBlocks(GroupBackend& backend, at::Tensor out, const at::Tensor& in, const at::Tensor& owners, int index)
      : out_(std::move(out)) {
    const int64_t slots = out_.size(0), owned_rows = in.size(0), members = owners.numel() / slots;
    const at::Tensor numbers = owners.to(at::kLong);
    const at::Tensor local_rows = numbers.sub(index * owned_rows).clamp(0, owned_rows - 1);
    const std::vector<int64_t> splits(static_cast<size_t>(members), slots);
    sent_ = in.index_select(0, local_rows);
    received_ = at::empty_like(sent_);
    const at::Tensor requests = numbers.view({members, slots})[index].clamp_min(0);
    from_ = at::div(requests, owned_rows, "floor").mul_(slots).add_(at::arange(slots, requests.options()));
    pending_ = backend.all_to_all(received_, sent_, splits, splits);
  }
  void wait() override {
    if (!received_.defined()) return;
    const at::NoGradGuard no_grad;
    if (pending_) pending_->wait();
    at::index_select_out(out_, received_, 0, from_);
    pending_ = nullptr;
    sent_ = received_ = at::Tensor();
  }

 private:
  at::Tensor out_, sent_, received_, from_;
  PendingPtr pending_;
};

class ReturnBlocks final : public Pending {
 public:
  ReturnBlocks(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners, int index)
      : sum_(std::move(sum)), slots_(in.size(0)) {
    const int64_t owned_rows = sum_.size(0), members = owners.numel() / slots_;
    sent_ = in.view({slots_, -1}).repeat({members, 1});
    received_ = at::empty_like(sent_);
    const at::Tensor numbers = owners.to(at::kLong).sub(index * owned_rows);
    is_local_ = numbers.ge(0).logical_and(numbers.lt(owned_rows));
    row_ = numbers.clamp(0, owned_rows - 1);
    const std::vector<int64_t> splits(static_cast<size_t>(members), slots_);
    pending_ = backend.all_to_all(received_, sent_, splits, splits);
  }
  // The slots of one member have different rows, so index_add_ adds one number or zero to each element.
  void wait() override {
    if (!received_.defined()) return;
    const at::NoGradGuard no_grad;
    if (pending_) pending_->wait();
    const at::Tensor flat = sum_.view({sum_.size(0), -1}), none = at::zeros({}, received_.options());
    for (int64_t first = 0; first < received_.size(0); first += slots_) {
      const at::Tensor is_local = is_local_.narrow(0, first, slots_).unsqueeze(1);
      flat.index_add_(0, row_.narrow(0, first, slots_),
                      at::where(is_local, received_.narrow(0, first, slots_), none));
    }
    pending_ = nullptr;
    sent_ = received_ = at::Tensor();
  }

 private:
  at::Tensor sum_;
  int64_t slots_;
  at::Tensor sent_, received_, is_local_, row_;
  PendingPtr pending_;
};

}  // namespace

PendingPtr fetch_by_hops(GroupBackend& backend, at::Tensor out, at::Tensor in, const at::Tensor& owners, int index) {
  std::vector<std::vector<Hop>> rounds = relay_hops(owner_numbers(owners), out.size(0), in.size(0));
  return std::make_shared<RelayFetch>(backend, std::move(out), std::move(in), std::move(rounds), index);
}
PendingPtr fetch_by_blocks(GroupBackend& backend, at::Tensor out, const at::Tensor& in, const at::Tensor& owners,
                           int index) {
  return std::make_shared<FetchBlocks>(backend, std::move(out), in, owners, index);
}
PendingPtr return_by_messages(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners,
                              int index) {
  return std::make_shared<ReturnByMessages>(backend, std::move(sum), in, owners, index);
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
