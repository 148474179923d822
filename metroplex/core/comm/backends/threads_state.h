// Internals of the threads backend: the hub, the meeting point of a group, and its operations.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "comm/backends/backend.h"
#include "comm/backends/threads.h"

namespace metroplex::comm {

// A point on the current stream of a tensor's device that other streams can wait for. No-op on the host.

class StreamMark {
 public:
  void record(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return;
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    event_.emplace(tensor.device().type());
    event_->record(device.getStream(tensor.device()));
  }
  // Makes the current stream of `tensor`'s device wait for the mark.
  void block(const at::Tensor& tensor) const {
    if (!event_) return;
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    event_->block(device.getStream(tensor.device()));
  }

 private:
  std::optional<c10::Event> event_;
};

class Meeting;

class HubState {
 public:
  HubState(int world_size, HubOptions options);
  const HubOptions& options() const { return options_; }
  std::shared_ptr<Meeting> meeting(const GroupSpec& spec);
  void abort(int rank, const std::string& cause);
  void leave(int rank);
  bool aborted() const { return aborted_.load(); }
  bool has_left(int rank) const { return left_[static_cast<size_t>(rank)].load(); }
  [[noreturn]] void throw_aborted() const;
  std::string format_ranks(const std::vector<int>& ranks) const;

 private:
  void wake_all();

  const HubOptions options_;
  std::vector<std::atomic<bool>> left_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::string cause_;
  std::map<GroupSpec, std::shared_ptr<Meeting>> meetings_;
};

enum class Kind {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  all_to_all,
  exchange_rows,
  fetch_rows,
  return_rows,
  barrier
};

// The arguments of one rank for a collective.
struct RankArgs {
  bool arrived = false;
  at::Tensor out, in;
  std::vector<int64_t> out_splits{}, in_splits{};
  StreamMark ready{};
  at::Tensor out_counts{}, in_counts{};  // of exchange_rows
  at::Tensor owners{};                   // of fetch_rows and return_rows
  bool overflow = false;                 // set by the chunk of this rank
};

// Arguments that must be equal on all ranks, in addition to sizes.
struct Agreement {
  Kind kind = Kind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;
  int64_t capacity = 0;
  friend bool operator==(const Agreement&, const Agreement&) = default;
};

// One numbered operation of a group. The work is divided into chunks; any rank may run one once all ranks have
// arrived.
struct Collective {
  Agreement agreement;
  int64_t number = 0;
  int first_index = 0;  // first rank to arrive; errors compare with it
  int num_arrived = 0;
  std::vector<RankArgs> all_args;
  int64_t num_chunks = 0;
  std::atomic<int64_t> next_chunk{0};
  std::atomic<int64_t> num_finished{0};
  std::atomic<bool> ready{false};
  std::atomic<bool> done{false};
  std::string error;  // set before done
  StreamMark finished;
};

// Checks that the arguments match and counts the chunks. Returns "" or an error text with group indices.
std::string prepare(Collective& op);
void run_chunk(Collective& op, int64_t chunk);
std::string in_words(const Agreement& agreement);

struct Message {
  at::Tensor tensor;
  StreamMark ready;  // send: the data is written; receive: the memory may be written
  StreamMark finished;
  std::atomic<bool> done{false};
};

struct Mailbox {
  std::deque<std::shared_ptr<Message>> sends, receives;
};

class Meeting {
 public:
  Meeting(HubState& hub, std::string name, std::vector<int> ranks);
  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  std::string in_words() const;

  // `number` counts the collectives of this group on the calling rank.
  std::shared_ptr<Collective> arrive(int index, int64_t number, const Agreement& agreement, RankArgs args);
  // Waits for the operation and helps with its chunks. Then releases the tensors of this rank.
  void finish(const std::shared_ptr<Collective>& op, int index);
  // Returns null if the operation is complete.
  std::shared_ptr<Message> post(int index, const P2pOp& op);
  void finish(const Message& message, int index, const P2pOp& op);
  void wake();

 private:
  void work(Collective& op);
  template <class Done, class Missing>
  void wait_until(const Done& done, const Missing& missing);

  HubState& hub_;
  const std::string name_;
  const std::vector<int> ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> num_sleeping_{0};
  std::map<int64_t, std::shared_ptr<Collective>> open_;     // not all have arrived
  std::map<std::tuple<int, int, int>, Mailbox> mailboxes_;  // from, to, channel
};

}  // namespace metroplex::comm
