// Messages from a rank to the built-in launcher through LaunchEnvironment::cause_fd. A note is one line: the rank
// can be stopped after a step, or a signal arrived. The last message is the report of a failure. This file also
// decides which signals count as one stop request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::comm {

struct Report {
  bool own = false;   // caused by this rank, not by another one
  int exit_code = 1;  // exit code the process will use
  std::string cause;
};

// The result fits into one atomic write to a pipe.
std::string encode(const Report& report);
// Returns nothing if the text is incomplete.
std::optional<Report> decode_report(const std::string& text);

enum class NoteKind {
  ready,   // from now on a signal stops the rank after a step
  signal,  // first signal to this rank that the launcher did not send
  again    // second one
};
struct Note {
  NoteKind kind = NoteKind::ready;
  int signal = 0;
};
// Async-signal-safe. No-op if fd is -1 (no launcher).
void write_note(int fd, Note note);
// Removes the complete notes from the front of `text` and returns them.
std::vector<Note> parse_notes(std::string& text);

// Returns the signals that request a stop: from supervisors, terminal, hang-up, and Slurm's --signal=USR1. Signals
// that are ignored at process start (nohup) stay ignored.
std::vector<int> stop_signals();
const char* stop_signal_name(int signal);  // "SIGTERM"

// Window in which a further signal to one process belongs to the same request. Supervisors signal every process of a
// group or cgroup, and timeout(1) signals its child twice. A user who repeats the request sends it later.
inline constexpr int64_t kSameRequestMs = 250;

enum class StopAction { none, stop /* after the step */, end /* at once */ };

// Maps each signal sent to one process to an action. Async-signal-safe.
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

// Stop requests of a launcher: its own signals, and signals that ranks report. Each action is returned once.
class StopRequests {
 public:
  StopAction signal(int64_t now_ms) { return once(own_.next(now_ms)); }
  StopAction on_rank_signal(bool again) { return once(again ? StopAction::end : StopAction::stop); }
  bool ending() const { return requested_ == StopAction::end; }

 private:
  StopAction once(StopAction action) {
    if (action <= requested_) return StopAction::none;
    requested_ = action;
    return action;
  }

  SignalCount own_;
  StopAction requested_ = StopAction::none;
};

}  // namespace metroplex::comm
