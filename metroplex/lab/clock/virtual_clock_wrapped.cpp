#include "clock/virtual_clock.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/backends/owned_rows.h"

namespace metroplex::clock {
namespace {

class Paused {
 public:
  Paused(VirtualClock& clock, int rank) : clock_(clock), rank_(rank) { clock_.pause(rank_); }
  ~Paused() { clock_.resume(rank_); }
  Paused(const Paused&) = delete;
  Paused& operator=(const Paused&) = delete;

 private:
  VirtualClock& clock_;
  int rank_;
};

double tensor_bytes(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

// Returns the bytes of one row of `rows`, which may have no rows.
double row_bytes(const at::Tensor& rows) {
  double bytes = static_cast<double>(rows.element_size());
  for (const int64_t size : rows.sizes().slice(1)) bytes *= static_cast<double>(size);
  return bytes;
}

double rows_for_others(const std::vector<int64_t>& splits, size_t index) {
  double rows = 0;
  for (size_t i = 0; i < splits.size(); ++i) rows += i == index ? 0 : static_cast<double>(splits[i]);
  return rows;
}

std::vector<double> bytes_to_each(const comm::CountedRows& in, int64_t capacity) {
  const auto* counts = static_cast<const int64_t*>(in.counts.const_data_ptr());
  const double row = row_bytes(in.rows);
  std::vector<double> bytes;
  int64_t left = in.rows.size(0);
  for (int64_t i = 0; i < in.counts.numel(); ++i) {
    const int64_t here = std::min(counts[i], left);
    bytes.push_back(static_cast<double>(std::min(here, capacity)) * row);
    left -= here;
  }
  return bytes;
}

std::vector<price::LinkTransfer> fetch_transfers(const at::Tensor& owners, int64_t slots, int64_t local_rows,
                                                 double bytes) {
  std::vector<price::LinkTransfer> transfers;
  std::map<std::pair<int, int64_t>, int> delivered;  // index of the transfer into each member's slot
  for (const std::vector<comm::Hop>& round : comm::relay_hops(comm::owner_numbers(owners), slots, local_rows)) {
    for (const comm::Hop& hop : round) {
      const int after = hop.from_slot < 0 ? -1 : delivered.at({hop.from, hop.from_slot});
      delivered[{hop.to, hop.to_slot}] = static_cast<int>(transfers.size());
      transfers.push_back({hop.from, hop.to, bytes, after});
    }
  }
  return transfers;
}

std::vector<price::LinkTransfer> return_transfers(const at::Tensor& owners, int64_t slots, int64_t local_rows,
                                                  double bytes) {
  std::vector<price::LinkTransfer> transfers;
  const auto numbers = comm::owner_numbers(owners);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto member = static_cast<int>(static_cast<int64_t>(i) / slots);
    if (numbers[i] >= 0) transfers.push_back({member, static_cast<int>(numbers[i] / local_rows), bytes});
  }
  return transfers;
}

struct ClockedContext {
  ClockedMember at;
  std::shared_ptr<VirtualClock> clock;
  std::shared_ptr<price::LinkTimeline> timeline;
};

// Operations with one common wait().
class ClockedPending final : public comm::Pending {
 public:
  ClockedPending(std::shared_ptr<const ClockedContext> context, int member, comm::PendingPtr inner)
      : context_(std::move(context)), member_(member), inner_(std::move(inner)) {}
  void add(price::TimedOperationPtr operation, double received_bytes) {
    received_bytes_ += received_bytes;
    open_.push_back(std::move(operation));
  }
  void wait() override {
    if (open_.empty()) return;
    const Paused paused(*context_->clock, context_->at.rank);
    if (inner_) inner_->wait();
    price::LinkUse use;
    for (const price::TimedOperationPtr& operation : open_) {
      const price::LinkUse one = context_->timeline->link_use(*operation, member_);
      use = {std::max(use.start_s, one.start_s), std::max(use.end_s, one.end_s)};
    }
    if (received_bytes_ > 0)
      use.end_s = std::max(use.end_s, use.start_s + context_->timeline->link().seconds(received_bytes_));
    context_->clock->wait_for(context_->at.rank, use, context_->at.group);
    open_.clear();
    inner_.reset();
  }

 private:
  std::shared_ptr<const ClockedContext> context_;
  int member_;
  comm::PendingPtr inner_;
  std::vector<price::TimedOperationPtr> open_;
  double received_bytes_ = 0;  // for messages
};

class ClockedBackend final : public comm::GroupBackend {
 public:
  ClockedBackend(ClockedContext context, std::shared_ptr<comm::GroupBackend> inner)
      : context_(std::make_shared<const ClockedContext>(std::move(context))), inner_(std::move(inner)) {
    const std::vector<int>& ranks = context_->at.group.ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), context_->at.rank);
    MPX_ASSERT(found != ranks.end(), "rank ", context_->at.rank, " is not in group ", context_->at.group.name);
    index_ = static_cast<size_t>(found - ranks.begin());
    const auto n = static_cast<double>(ranks.size());
    share_of_others_ = (n - 1) / n;
  }

  comm::PendingPtr all_reduce(at::Tensor tensor, comm::ReduceOp op) override {
    return issue({2 * share_of_others_ * tensor_bytes(tensor)},
                 [&] { return inner_->all_reduce(std::move(tensor), op); });
  }
  comm::PendingPtr all_gather(at::Tensor out, at::Tensor in) override {
    return issue({share_of_others_ * tensor_bytes(out)},
                 [&] { return inner_->all_gather(std::move(out), std::move(in)); });
  }
  comm::PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, comm::ReduceOp op) override {
    return issue({share_of_others_ * tensor_bytes(in)},
                 [&] { return inner_->reduce_scatter(std::move(out), std::move(in), op); });
  }
  comm::PendingPtr broadcast(at::Tensor tensor, int root) override {
    return issue({tensor_bytes(tensor)}, [&] { return inner_->broadcast(std::move(tensor), root); });
  }
  comm::PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits,
                              std::vector<int64_t> in_splits) override {
    const double rows = std::max(rows_for_others(in_splits, index_), rows_for_others(out_splits, index_));
    return issue({rows * row_bytes(in)}, [&] {
      return inner_->all_to_all(std::move(out), std::move(in), std::move(out_splits), std::move(in_splits));
    });
  }
  comm::PendingPtr exchange_rows(comm::CountedRows out, comm::CountedRows in, int64_t capacity,
                                 at::Tensor overflow) override {
    return issue({0, bytes_to_each(in, capacity)},
                 [&] { return inner_->exchange_rows(std::move(out), std::move(in), capacity, std::move(overflow)); });
  }
  comm::PendingPtr fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int index) override {
    price::LinkLoad load{.sends_wait = context_->at.sends_wait};
    load.transfers = fetch_transfers(owners, out.size(0), in.size(0), row_bytes(in));
    return issue(std::move(load), [&] { return inner_->fetch_rows(out, in, owners, index); });
  }
  comm::PendingPtr return_rows(at::Tensor sum, at::Tensor in, at::Tensor owners, int index) override {
    price::LinkLoad load{.sends_wait = context_->at.sends_wait};
    load.transfers = return_transfers(owners, in.size(0), sum.size(0), row_bytes(in));
    return issue(std::move(load), [&] { return inner_->return_rows(sum, in, owners, index); });
  }
  comm::PendingPtr batch_p2p(std::vector<comm::P2pOp> ops) override {
    return post(ops, [&] { return inner_->batch_p2p(ops); });
  }
  comm::PendingPtr gather(at::Tensor out, at::Tensor in, int index, int size) override {
    std::vector<comm::P2pOp> ops;
    if (index != 0) ops.push_back({true, in, 0, 0});
    for (int member = 1; index == 0 && member < size; ++member) ops.push_back({false, in, member, 0});
    return post(ops, [&] { return inner_->gather(std::move(out), std::move(in), index, size); });
  }
  void barrier() override {
    issue({}, [&]() -> comm::PendingPtr {
      inner_->barrier();
      return nullptr;
    })->wait();
  }

 private:
  // The operation is stamped before `start`, so all stamps exist when it completes.
  template <class Start>
  comm::PendingPtr issue(price::LinkLoad load, const Start& start) {
    const Paused paused(*context_->clock, context_->at.rank);
    price::TimedOperationPtr operation = context_->timeline->issue(
        next_number_++, static_cast<int>(index_), context_->clock->now(context_->at.rank), std::move(load));
    auto pending = std::make_shared<ClockedPending>(context_, static_cast<int>(index_), start());
    pending->add(std::move(operation), 0);
    return pending;
  }
  template <class Start>
  comm::PendingPtr post(const std::vector<comm::P2pOp>& ops, const Start& start) {
    const Paused paused(*context_->clock, context_->at.rank);
    const double now_s = context_->clock->now(context_->at.rank);
    const int me = static_cast<int>(index_);
    std::vector<std::pair<price::TimedOperationPtr, double>> awaited;
    for (const comm::P2pOp& op : ops) {
      const price::MessageRoute route{op.is_send ? me : op.peer, op.is_send ? op.peer : me, op.channel};
      const double bytes = tensor_bytes(op.tensor);
      price::TimedOperationPtr message = context_->timeline->post(route, op.is_send, now_s, bytes);
      if (!op.is_send) awaited.emplace_back(std::move(message), bytes);
      else if (context_->at.sends_wait) awaited.emplace_back(std::move(message), 0);
    }
    comm::PendingPtr inner = start();
    if (awaited.empty()) return inner;
    auto pending = std::make_shared<ClockedPending>(context_, me, std::move(inner));
    for (auto& [message, bytes] : awaited) pending->add(std::move(message), bytes);
    return pending;
  }

  std::shared_ptr<const ClockedContext> context_;
  std::shared_ptr<comm::GroupBackend> inner_;
  size_t index_ = 0;
  double share_of_others_ = 0;
  int64_t next_number_ = 0;
};

}  // namespace

std::shared_ptr<comm::GroupBackend> make_clocked_backend(const ClockedMember& context,
                                                         std::shared_ptr<VirtualClock> clock,
                                                         std::shared_ptr<comm::GroupBackend> inner) {
  std::shared_ptr<price::LinkTimeline> timeline = clock->timeline(context.group);
  return std::make_shared<ClockedBackend>(ClockedContext{context, std::move(clock), std::move(timeline)},
                                          std::move(inner));
}

}  // namespace metroplex::clock
