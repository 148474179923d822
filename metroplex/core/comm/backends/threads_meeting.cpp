#include "comm/backends/threads_state.h"

#include <sched.h>

#include <cstring>

#include "base/error.h"
#include "device/memory_meter.h"

namespace metroplex::comm {
namespace {

// More ranks than cores are normal: a waiting rank yields its core in every iteration and sleeps soon.
constexpr auto kSpin = std::chrono::microseconds(40);

void copy_flat(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0) return;
  if (to.is_cpu() && from.is_cpu()) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  else to.view(-1).copy_(from.view(-1), /*non_blocking=*/true);
}

std::string format_size(const at::Tensor& tensor) {
  return base::concat(tensor.numel(), " x ", c10::toString(tensor.scalar_type()));
}

}  // namespace

Meeting::Meeting(HubState& hub, std::string name, std::vector<int> ranks)
    : hub_(hub), name_(std::move(name)), ranks_(std::move(ranks)) {}

std::string Meeting::in_words() const { return "group " + name_ + " (" + hub_.format_ranks(ranks_) + ")"; }

void Meeting::wake() {
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

// `done` must not take a lock. `missing` runs under the lock and returns the global ranks that have not arrived.
template <class Done, class Missing>
void Meeting::wait_until(const Done& done, const Missing& missing) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    if (done()) return;
    if (hub_.aborted()) hub_.throw_aborted();
    if (std::chrono::steady_clock::now() - start > kSpin) break;
    sched_yield();
  }
  const auto deadline = start + hub_.options().timeout;
  std::unique_lock lock(mutex_);
  ++num_sleeping_;
  struct Awake {
    std::atomic<int>& count;
    ~Awake() { --count; }
  } awake{num_sleeping_};
  while (!done()) {
    if (hub_.aborted()) hub_.throw_aborted();
    std::vector<int> gone;
    const auto [what, absent] = missing();
    for (const int rank : absent) {
      if (hub_.has_left(rank)) gone.push_back(rank);
    }
    if (!gone.empty()) {
      throw PeerFailure(what + " of " + in_words() + " can never complete: " + hub_.format_ranks(gone) +
                        " has finished its work without taking part");
    }
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && !done() && !hub_.aborted()) {
      const auto seconds = std::chrono::duration<double>(hub_.options().timeout).count();
      const auto [last_what, last_absent] = missing();
      throw base::Error("comm", base::concat(last_what, " of ", in_words(), " did not complete within ", seconds,
                                             " s; missing: ", hub_.format_ranks(last_absent)));
    }
  }
}

std::shared_ptr<Collective> Meeting::arrive(int index, int64_t number, const Agreement& agreement, RankArgs args) {
  if (hub_.aborted()) hub_.throw_aborted();
  std::shared_ptr<Collective> op;
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Collective>& entry = open_[number];
    if (!entry) {
      entry = std::make_shared<Collective>();
      entry->agreement = agreement;
      entry->number = number;
      entry->first_index = index;
      entry->all_args.resize(ranks_.size());
    }
    op = entry;
    const int first = ranks_[static_cast<size_t>(op->first_index)];
    MPX_CHECK(op->agreement == agreement, "comm", "operation ", number, " of ", in_words(), " is ",
              comm::in_words(agreement), " on ", hub_.format_ranks({ranks_[static_cast<size_t>(index)]}), " but ",
              comm::in_words(op->agreement), " on ", hub_.format_ranks({first}),
              "; all ranks of a group must call the same operations in the same order");
    op->all_args[static_cast<size_t>(index)] = std::move(args);
    complete = ++op->num_arrived == static_cast<int>(ranks_.size());
    if (complete) open_.erase(number);
  }
  if (complete) {
    op->error = prepare(*op);
    if (!op->error.empty()) {
      op->error =
          comm::in_words(agreement) + " number " + std::to_string(number) + " of " + in_words() + ": " + op->error;
      op->num_chunks = 0;
    }
    if (op->num_chunks == 0) op->done = true;
    op->ready = true;
    if (num_sleeping_ > 0) wake();
    work(*op);
  }
  return op;
}

void Meeting::work(Collective& op) {
  while (true) {
    const int64_t chunk = op.next_chunk++;
    if (chunk >= op.num_chunks) return;
    run_chunk(op, chunk);
    if (++op.num_finished == op.num_chunks) {
      op.done = true;
      if (num_sleeping_ > 0) wake();
    }
  }
}

void Meeting::finish(const std::shared_ptr<Collective>& op, int index) {
  const auto missing = [&] {
    std::vector<int> absent;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (!op->all_args[i].arrived) absent.push_back(ranks_[i]);
    }
    return std::pair(comm::in_words(op->agreement) + " number " + std::to_string(op->number), absent);
  };
  wait_until([&] { return op->ready.load(); }, missing);
  work(*op);
  wait_until([&] { return op->done.load(); }, missing);
  RankArgs& mine = op->all_args[static_cast<size_t>(index)];
  mine.out.reset();
  mine.in.reset();
  mine.out_counts.reset();
  mine.in_counts.reset();
  mine.owners.reset();
  if (!op->error.empty()) throw base::Error("comm", op->error);
}

std::shared_ptr<Message> Meeting::post(int index, const P2pOp& op) {
  if (hub_.aborted()) hub_.throw_aborted();
  MPX_ASSERT(op.peer >= 0 && op.peer < static_cast<int>(ranks_.size()), "peer ", op.peer, " of ", in_words());
  auto mine = std::make_shared<Message>();
  mine->tensor = op.tensor;
  const bool buffered = op.is_send && !hub_.options().rendezvous;
  const auto key = op.is_send ? std::tuple(index, op.peer, op.channel) : std::tuple(op.peer, index, op.channel);
  std::shared_ptr<Message> other;
  const auto meet = [&](bool post_it) {
    const std::lock_guard lock(mutex_);
    Mailbox& mailbox = mailboxes_[key];
    auto& peer_messages = op.is_send ? mailbox.receives : mailbox.sends;
    if (!peer_messages.empty()) {
      other = std::move(peer_messages.front());
      peer_messages.pop_front();
    } else if (post_it) {
      (op.is_send ? mailbox.sends : mailbox.receives).push_back(mine);
    }
  };
  meet(/*post_it=*/false);
  if (!other) {
    if (buffered) {
      const device::UnmeteredMemory unmetered;  // freed by the receiver
      mine->tensor = op.tensor.clone();
    }
    mine->ready.record(mine->tensor);
    meet(/*post_it=*/true);
  }
  if (!other) return buffered ? nullptr : mine;
  const Message& from = op.is_send ? *mine : *other;
  const Message& to = op.is_send ? *other : *mine;
  MPX_CHECK(from.tensor.numel() == to.tensor.numel() && from.tensor.scalar_type() == to.tensor.scalar_type(), "comm",
            in_words(), ": ", hub_.format_ranks({ranks_[static_cast<size_t>(std::get<0>(key))]}), " sends ",
            format_size(from.tensor), " but ", hub_.format_ranks({ranks_[static_cast<size_t>(std::get<1>(key))]}),
            " receives ", format_size(to.tensor));
  other->ready.block(op.tensor);
  copy_flat(to.tensor, from.tensor);
  other->finished.record(op.tensor);
  {
    // The tensor is freed before its rank continues, so that the rank's memory use does not depend on scheduling.
    const device::UnmeteredMemory unmetered;
    other->tensor.reset();
    mine->tensor.reset();  // a copy, if the receive was posted during the copy
  }
  other->done = true;
  if (num_sleeping_ > 0) wake();
  return nullptr;
}

void Meeting::finish(const Message& message, int index, const P2pOp& op) {
  wait_until([&] { return message.done.load(); },
             [&] {
               const auto me = hub_.format_ranks({ranks_[static_cast<size_t>(index)]});
               return std::pair((op.is_send ? "a send of " : "a receive of ") + me,
                                std::vector<int>{ranks_[static_cast<size_t>(op.peer)]});
             });
}

}  // namespace metroplex::comm
