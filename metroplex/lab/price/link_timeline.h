// Start and end times of the operations of one communicator in virtual time; no tensors. A collective starts when
// its last member has issued it and the previous collective has ended. A message starts when both ends have issued
// it and the previous message on the same route (from, to, channel) has ended. An operation may also consist of
// transfers between members; a member waits only for its own. Times do not depend on thread scheduling.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "price/link.h"

namespace metroplex::price {

// One transfer of an operation between two members. It starts when both have issued the operation, its data is
// available, and the links are free. A member sends one transfer at a time and receives one at a time. The latency
// overlaps with the next transfer.
struct LinkTransfer {
  int from = 0, to = 0;
  double bytes = 0;
  int after = -1;  // index of the transfer that delivers the data to `from`; -1: `from` has it
};

// Bytes of one member's link in an operation; the larger direction counts.
struct LinkLoad {
  double bytes = 0;               // sent or received, as far as the member can compute them
  std::vector<double> sent_to{};  // bytes sent to each member, if receivers cannot compute their own bytes
  // If set, the operation consists of exactly these transfers. Equal on all members.
  std::optional<std::vector<LinkTransfer>> transfers{};
  bool sends_wait = false;  // for transfers: the sender also waits for their ends
};

struct LinkUse {
  double start_s = 0, end_s = 0;
};

// A collective or a message. Its times are known once all members, or both ends, have issued it.
struct TimedOperation {
  int missing = 0;
  double issued_s = 0;                         // latest issue time so far
  double bytes = 0;                            // maximum over the members' links
  std::vector<std::vector<double>> sent_to{};  // by sender
  std::vector<double> issued_by{};             // of a collective, by member
  LinkUse use{};
  std::vector<LinkUse> uses{};  // of transfers, by member
};
using TimedOperationPtr = std::shared_ptr<TimedOperation>;

// Route of a message; `from` and `to` are indices in the group.
struct MessageRoute {
  int from = 0, to = 0, channel = 0;
  friend auto operator<=>(const MessageRoute&, const MessageRoute&) = default;
};

class LinkTimeline {
 public:
  LinkTimeline(const LinkCost& link, int num_members)
      : link_(link),
        num_members_(num_members),
        sends_free_s_(static_cast<size_t>(num_members)),
        receives_free_s_(static_cast<size_t>(num_members)) {}
  const LinkCost& link() const { return link_; }
  // `number` counts the collectives of this communicator on the issuing member.
  TimedOperationPtr issue(int64_t number, int member, double at_s, LinkLoad load);
  TimedOperationPtr post(const MessageRoute& route, bool is_send, double at_s, double bytes);
  // Returns the interval for which `member` waits. Requires that all members have issued the operation.
  LinkUse link_use(const TimedOperation& operation, int member) const;

 private:
  struct Route {
    std::deque<TimedOperationPtr> sends, receives;  // unmatched
    double free_s = 0;
  };
  void schedule(TimedOperation& operation, double& free_s) const;
  void schedule_transfers(TimedOperation& operation, const std::vector<LinkTransfer>& transfers, bool sends_wait);

  const LinkCost link_;
  const int num_members_;
  mutable std::mutex mutex_;
  std::map<int64_t, TimedOperationPtr> open_;  // not yet issued by all members
  double free_s_ = 0;                          // end of the last complete collective
  double transfers_end_s_ = 0;
  std::vector<double> sends_free_s_, receives_free_s_;  // for transfers, by member
  std::map<MessageRoute, Route> routes_;
};

}  // namespace metroplex::price
