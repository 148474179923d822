#include "comm/backends/timeline.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace metroplex::comm {
namespace {

// The most that a member sends to others, or receives from them.
double most_bytes(const std::vector<std::vector<double>>& sent_to) {
  double most = 0;
  for (size_t member = 0; member < sent_to.size(); ++member) {
    double sent = 0, received = 0;
    for (size_t other = 0; other < sent_to.size(); ++other) {
      if (other == member) continue;
      sent += sent_to[member][other];
      received += sent_to[other][member];
    }
    most = std::max({most, sent, received});
  }
  return most;
}

}  // namespace

TimedOperationPtr Timeline::issue(int64_t number, int member, double at_s, LinkLoad load) {
  const std::lock_guard lock(mutex_);
  TimedOperationPtr& slot = open_[number];
  if (!slot) slot = std::make_shared<TimedOperation>(TimedOperation{.missing = num_members_});
  const TimedOperationPtr operation = slot;
  operation->issued_s = std::max(operation->issued_s, at_s);
  operation->bytes = std::max(operation->bytes, load.bytes);
  if (!load.sent_to.empty()) {
    operation->sent_to.resize(static_cast<size_t>(num_members_));
    operation->sent_to[static_cast<size_t>(member)] = std::move(load.sent_to);
  }
  if (--operation->missing > 0) return operation;
  operation->bytes = std::max(operation->bytes, most_bytes(operation->sent_to));
  settle(*operation, free_s_);
  open_.erase(number);
  return operation;
}

TimedOperationPtr Timeline::post(const MessageWay& way, bool is_send, double at_s, double bytes) {
  const std::lock_guard lock(mutex_);
  Way& on = ways_[way];
  std::deque<TimedOperationPtr>& theirs = is_send ? on.receives : on.sends;
  if (theirs.empty()) {
    const TimedOperation half{.missing = 1, .issued_s = at_s, .bytes = bytes};
    return (is_send ? on.sends : on.receives).emplace_back(std::make_shared<TimedOperation>(half));
  }
  const TimedOperationPtr message = theirs.front();
  theirs.pop_front();
  message->missing = 0;
  message->issued_s = std::max(message->issued_s, at_s);
  settle(*message, on.free_s);
  return message;
}

LinkUse Timeline::use_of(const TimedOperation& operation) const {
  const std::lock_guard lock(mutex_);
  MPX_ASSERT(operation.missing == 0, operation.missing, " have not issued an operation that ended");
  return operation.use;
}

void Timeline::settle(TimedOperation& operation, double& free_s) const {
  operation.use.start_s = std::max(operation.issued_s, free_s);
  operation.use.end_s = operation.use.start_s + link_.seconds(operation.bytes);
  operation.sent_to.clear();
  free_s = operation.use.end_s;
}

}  // namespace metroplex::comm
