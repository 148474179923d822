#include "comm/backends/threads.h"

#include <algorithm>

#include "comm/backends/threads_state.h"

namespace metroplex::comm {

HubState::HubState(int world_size, HubOptions options)
    : options_(std::move(options)), left_(static_cast<size_t>(world_size)) {}

std::shared_ptr<Meeting> HubState::meeting(const GroupSpec& spec) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Meeting>& meeting = meetings_[spec];
  if (!meeting) meeting = std::make_shared<Meeting>(*this, spec.name, spec.ranks);
  return meeting;
}

void HubState::abort(int rank, const std::string& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    cause_ = options_.rank_name(rank) + " failed: " + cause;
    aborted_ = true;
  }
  wake_all();
}

void HubState::leave(int rank) {
  left_[static_cast<size_t>(rank)] = true;
  wake_all();
}

void HubState::wake_all() {
  // A waiting rank takes the meeting's lock and then this one to read the cause. The opposite order would deadlock.
  std::vector<std::shared_ptr<Meeting>> meetings;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, meeting] : meetings_) meetings.push_back(meeting);
  }
  for (const auto& meeting : meetings) meeting->wake();
}

void HubState::throw_aborted() const {
  const std::lock_guard lock(mutex_);
  throw PeerFailure(cause_);
}

std::string HubState::format_ranks(const std::vector<int>& ranks) const {
  std::string words;
  for (const int rank : ranks) words += (words.empty() ? "" : ", ") + options_.rank_name(rank);
  return words;
}

namespace {

class CollectivePending final : public Pending {
 public:
  CollectivePending(std::shared_ptr<Meeting> meeting, std::shared_ptr<Collective> op, int index, at::Tensor device,
                    at::Tensor overflow)
      : meeting_(std::move(meeting)),
        op_(std::move(op)),
        index_(index),
        device_(std::move(device)),
        overflow_(std::move(overflow)) {}
  void wait() override {
    if (!op_) return;
    meeting_->finish(op_, index_);
    if (device_.defined()) op_->finished.block(device_);
    if (op_->all_args[static_cast<size_t>(index_)].overflow) *static_cast<int32_t*>(overflow_.mutable_data_ptr()) = 1;
    op_.reset();
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  std::shared_ptr<Collective> op_;
  int index_;
  at::Tensor device_, overflow_;
};

class MessagesPending final : public Pending {
 public:
  MessagesPending(std::shared_ptr<Meeting> meeting, int index) : meeting_(std::move(meeting)), index_(index) {}
  void add(std::shared_ptr<Message> message, P2pOp op) { open_.emplace_back(std::move(message), std::move(op)); }
  void wait() override {
    for (const auto& [message, op] : open_) {
      meeting_->finish(*message, index_, op);
      message->finished.block(op.tensor);
    }
    open_.clear();
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  int index_;
  std::vector<std::pair<std::shared_ptr<Message>, P2pOp>> open_;
};

class ThreadBackend final : public GroupBackend {
 public:
  ThreadBackend(std::shared_ptr<HubState> hub, std::shared_ptr<Meeting> meeting, int index)
      : hub_(std::move(hub)), meeting_(std::move(meeting)), index_(index) {}

  PendingPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    return issue({Kind::all_reduce, op, 0}, tensor, tensor);
  }
  PendingPtr all_gather(at::Tensor out, at::Tensor in) override {
    return issue({Kind::all_gather, ReduceOp::sum, 0}, out, in);
  }
  PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    return issue({Kind::reduce_scatter, op, 0}, out, in);
  }
  PendingPtr broadcast(at::Tensor tensor, int root) override {
    return issue({Kind::broadcast, ReduceOp::sum, root}, tensor, tensor);
  }
  PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits,
                        std::vector<int64_t> in_splits) override {
    RankArgs args{true, out, in, std::move(out_splits), std::move(in_splits), {}};
    return issue({Kind::all_to_all, ReduceOp::sum, 0}, std::move(args));
  }
  PendingPtr exchange_rows(CountedRows out, CountedRows in, int64_t capacity, at::Tensor overflow) override {
    if (!in.rows.is_cpu()) return GroupBackend::exchange_rows(std::move(out), std::move(in), capacity, overflow);
    RankArgs args{true, out.rows, in.rows, {}, {}, {}, out.counts, in.counts};
    return issue({Kind::exchange_rows, ReduceOp::sum, 0, capacity}, std::move(args), std::move(overflow));
  }
  PendingPtr fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int index) override {
    if (!in.is_cpu()) return GroupBackend::fetch_rows(std::move(out), std::move(in), std::move(owners), index);
    return issue({Kind::fetch_rows}, RankArgs{.arrived = true, .out = out, .in = in, .owners = owners});
  }
  PendingPtr return_rows(at::Tensor sum, at::Tensor in, at::Tensor owners, int index) override {
    if (!in.is_cpu()) return GroupBackend::return_rows(std::move(sum), std::move(in), std::move(owners), index);
    return issue({Kind::return_rows}, RankArgs{.arrived = true, .out = sum, .in = in, .owners = owners});
  }
  void barrier() override { issue({}, RankArgs{true, {}, {}, {}, {}, {}})->wait(); }

  PendingPtr batch_p2p(std::vector<P2pOp> ops) override {
    std::shared_ptr<MessagesPending> pending;
    for (P2pOp& op : ops) {
      std::shared_ptr<Message> message = meeting_->post(index_, op);
      if (!message) continue;
      if (!pending) pending = std::make_shared<MessagesPending>(meeting_, index_);
      pending->add(std::move(message), std::move(op));
    }
    return pending;
  }

 private:
  PendingPtr issue(const Agreement& agreement, const at::Tensor& out, const at::Tensor& in) {
    return issue(agreement, RankArgs{true, out, in, {}, {}, {}});
  }
  PendingPtr issue(const Agreement& agreement, RankArgs args, at::Tensor overflow = {}) {
    at::Tensor device;
    if (args.in.defined() && !args.in.is_cpu()) device = args.in;
    if (device.defined()) args.ready.record(device);
    std::shared_ptr<Collective> op = meeting_->arrive(index_, next_number_++, agreement, std::move(args));
    return std::make_shared<CollectivePending>(meeting_, std::move(op), index_, std::move(device),
                                               std::move(overflow));
  }

  std::shared_ptr<HubState> hub_;
  std::shared_ptr<Meeting> meeting_;
  int index_;
  int64_t next_number_ = 0;
};

}  // namespace

Hub::Hub(int world_size, HubOptions options) : state_(std::make_shared<HubState>(world_size, std::move(options))) {}

std::shared_ptr<GroupBackend> Hub::backend(const GroupSpec& spec, int rank) const {
  const auto found = std::find(spec.ranks.begin(), spec.ranks.end(), rank);
  MPX_ASSERT(found != spec.ranks.end(), "rank ", rank, " is not in group ", spec.name);
  return std::make_shared<ThreadBackend>(state_, state_->meeting(spec), static_cast<int>(found - spec.ranks.begin()));
}

void Hub::abort(int rank, const std::string& cause) const { state_->abort(rank, cause); }
void Hub::leave(int rank) const { state_->leave(rank); }

}  // namespace metroplex::comm
