// Which of the signals that reach a launcher and its ranks are one request. Supervisors send to all processes of a
// group or a cgroup, timeout(1) even twice to its child; a person who means it sends again later.
#pragma once

#include <cstdint>

namespace metroplex::comm {

// How long after the first signal another one to the same process still is the same request.
inline constexpr int64_t kSameRequestMs = 250;

enum class StopAction { none, stop /* after the step */, end /* at once */ };

// Of one process: of each signal sent to it, what is meant. Safe in a signal handler.
struct SignalCount {
  int64_t first_ms = -1;
  StopAction next(int64_t now_ms) {
    if (first_ms < 0) {
      first_ms = now_ms;
      return StopAction::stop;
    }
    return now_ms - first_ms < kSameRequestMs ? StopAction::none : StopAction::end;
  }
};

// Of a launcher: its own signals, and what ranks say of theirs. Each is asked for once.
class StopRequests {
 public:
  StopAction signal(int64_t now_ms) { return once(own_.next(now_ms)); }
  StopAction told(bool again) { return once(again ? StopAction::end : StopAction::stop); }
  bool ending() const { return asked_ == StopAction::end; }

 private:
  StopAction once(StopAction action) {
    if (action <= asked_) return StopAction::none;
    asked_ = action;
    return action;
  }

  SignalCount own_;
  StopAction asked_ = StopAction::none;
};

}  // namespace metroplex::comm
