// When the operations of one communicator start and end in virtual time: numbers only, no tensors. A collective
// starts when its last member has issued it and the collective before it has ended; a message when both its ends
// have been issued and the message before it on the same way (from, to, channel) has ended. An operation may also be
// made of transfers between its members, each of whom waits for its own. Times do not depend on which thread ran
// first.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

namespace metroplex::comm {

// An operation that has started ends after latency_s + bytes / bytes_per_s.
struct LinkCost {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
  double seconds(double bytes) const { return latency_s + bytes / bytes_per_s; }
};

// A part of an operation, from one member to another. It starts when both have issued the operation, what it hands on
// is there, and the links are free: a member sends one at a time, and receives one at a time. Latencies pass beside
// the next transfer.
struct LinkTransfer {
  int from = 0, to = 0;
  double bytes = 0;
  int after = -1;  // index of the earlier transfer that brings it; -1: `from` has it
};

// What the link of one member carries in an operation, in each direction: the larger counts.
struct LinkLoad {
  double bytes = 0;               // sent or received, as far as the member knows both
  std::vector<double> sent_to{};  // bytes for each member, where a receiver learns only from them what comes
  // Where set, the operation is these and nothing else. The same on all members.
  std::optional<std::vector<LinkTransfer>> transfers{};
  bool sends_wait = false;  // of transfers: they end for the sender too
};

struct LinkUse {
  double start_s = 0, end_s = 0;
};

// A collective, or a message. Its times are known when all its members, or both its ends, have issued it.
struct TimedOperation {
  int missing = 0;
  double issued_s = 0;                         // the latest so far
  double bytes = 0;                            // the most that any member's link carries
  std::vector<std::vector<double>> sent_to{};  // by sender
  std::vector<double> issued_by{};             // of a collective, by member
  LinkUse use{};
  std::vector<LinkUse> uses{};  // of transfers, by member
};
using TimedOperationPtr = std::shared_ptr<TimedOperation>;

// Where a message goes; `from` and `to` are indices in the group.
struct MessageWay {
  int from = 0, to = 0, channel = 0;
  friend auto operator<=>(const MessageWay&, const MessageWay&) = default;
};

class Timeline {
 public:
  Timeline(const LinkCost& link, int num_members)
      : link_(link),
        num_members_(num_members),
        sends_free_s_(static_cast<size_t>(num_members)),
        receives_free_s_(static_cast<size_t>(num_members)) {}
  const LinkCost& link() const { return link_; }
  // `number` counts the collectives of this communicator on the issuing member.
  TimedOperationPtr issue(int64_t number, int member, double at_s, LinkLoad load);
  TimedOperationPtr post(const MessageWay& way, bool is_send, double at_s, double bytes);
  // What `member` waits for. Requires that all have issued it.
  LinkUse use_of(const TimedOperation& operation, int member) const;

 private:
  struct Way {
    std::deque<TimedOperationPtr> sends, receives;  // without their other end
    double free_s = 0;
  };
  void settle(TimedOperation& operation, double& free_s) const;
  void settle_transfers(TimedOperation& operation, const std::vector<LinkTransfer>& transfers, bool sends_wait);

  const LinkCost link_;
  const int num_members_;
  mutable std::mutex mutex_;
  std::map<int64_t, TimedOperationPtr> open_;           // not all have issued them
  double free_s_ = 0;                                   // when the last complete collective ended
  double transfers_end_s_ = 0;                          // when the last transfer ended
  std::vector<double> sends_free_s_, receives_free_s_;  // of transfers, by member
  std::map<MessageWay, Way> ways_;
};

}  // namespace metroplex::comm
