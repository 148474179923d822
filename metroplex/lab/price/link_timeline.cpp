#include "price/link_timeline.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace metroplex::price {
namespace {

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

TimedOperationPtr LinkTimeline::issue(int64_t number, int member, double at_s, LinkLoad load) {
  const std::lock_guard lock(mutex_);
  TimedOperationPtr& slot = open_[number];
  if (!slot) slot = std::make_shared<TimedOperation>(TimedOperation{.missing = num_members_});
  const TimedOperationPtr operation = slot;
  operation->issued_s = std::max(operation->issued_s, at_s);
  operation->issued_by.resize(static_cast<size_t>(num_members_));
  operation->issued_by[static_cast<size_t>(member)] = at_s;
  operation->bytes = std::max(operation->bytes, load.bytes);
  if (!load.sent_to.empty()) {
    operation->sent_to.resize(static_cast<size_t>(num_members_));
    operation->sent_to[static_cast<size_t>(member)] = std::move(load.sent_to);
  }
  if (--operation->missing > 0) return operation;
  operation->bytes = std::max(operation->bytes, most_bytes(operation->sent_to));
  if (load.transfers) {
    schedule_transfers(*operation, *load.transfers, load.sends_wait);
  } else {
    free_s_ = std::max(free_s_, transfers_end_s_);
    schedule(*operation, free_s_);
  }
  open_.erase(number);
  return operation;
}

TimedOperationPtr LinkTimeline::post(const MessageRoute& route, bool is_send, double at_s, double bytes) {
  const std::lock_guard lock(mutex_);
  Route& on = routes_[route];
  std::deque<TimedOperationPtr>& theirs = is_send ? on.receives : on.sends;
  if (theirs.empty()) {
    const TimedOperation half{.missing = 1, .issued_s = at_s, .bytes = bytes};
    return (is_send ? on.sends : on.receives).emplace_back(std::make_shared<TimedOperation>(half));
  }
  const TimedOperationPtr message = theirs.front();
  theirs.pop_front();
  message->missing = 0;
  message->issued_s = std::max(message->issued_s, at_s);
  schedule(*message, on.free_s);
  return message;
}

LinkUse LinkTimeline::link_use(const TimedOperation& operation, int member) const {
  const std::lock_guard lock(mutex_);
  MPX_ASSERT(operation.missing == 0, operation.missing, " have not issued an operation that ended");
  return operation.uses.empty() ? operation.use : operation.uses[static_cast<size_t>(member)];
}

// Schedules the transfer that can start first; ties go to the first in the list.
void LinkTimeline::schedule_transfers(TimedOperation& operation, const std::vector<LinkTransfer>& transfers,
                                      bool sends_wait) {
  constexpr double kOpen = std::numeric_limits<double>::infinity();
  std::vector<double> ends(transfers.size(), kOpen);
  const auto start_of = [&](const LinkTransfer& transfer) {
    const auto from = static_cast<size_t>(transfer.from), to = static_cast<size_t>(transfer.to);
    const double there = transfer.after < 0 ? 0 : ends[static_cast<size_t>(transfer.after)];
    return std::max({there, operation.issued_by[from], operation.issued_by[to], sends_free_s_[from],
                     receives_free_s_[to], free_s_});
  };
  for (const double issued : operation.issued_by) operation.uses.push_back({issued, issued});
  const auto ends_for = [&](int member, const LinkUse& use) {
    LinkUse& own = operation.uses[static_cast<size_t>(member)];
    own = {own.end_s > own.start_s ? std::min(own.start_s, use.start_s) : use.start_s,
           std::max(own.end_s, use.end_s)};
  };
  for (size_t left = transfers.size(); left > 0; --left) {
    size_t next = 0;
    double start = kOpen;
    for (size_t i = 0; i < transfers.size(); ++i) {
      if (ends[i] != kOpen || start_of(transfers[i]) >= start) continue;
      next = i;
      start = start_of(transfers[i]);
    }
    const LinkTransfer& transfer = transfers[next];
    const LinkUse use{start, start + link_.seconds(transfer.bytes)};
    ends[next] = use.end_s;
    sends_free_s_[static_cast<size_t>(transfer.from)] = receives_free_s_[static_cast<size_t>(transfer.to)] =
        start + transfer.bytes / link_.bytes_per_s;
    ends_for(transfer.to, use);
    if (sends_wait) ends_for(transfer.from, use);
    transfers_end_s_ = std::max(transfers_end_s_, use.end_s);
  }
}

void LinkTimeline::schedule(TimedOperation& operation, double& free_s) const {
  operation.use.start_s = std::max(operation.issued_s, free_s);
  operation.use.end_s = operation.use.start_s + link_.seconds(operation.bytes);
  operation.sent_to.clear();
  free_s = operation.use.end_s;
}

}  // namespace metroplex::price
