// What a rank says to our own launcher through LaunchEnvironment::cause_fd: notes, a line each, that it is ready to
// be stopped and that a signal reached it, and at last the report of why it fails. And which of these signals are one
// request to stop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::comm {

struct Report {
  bool own = false;   // its own failure, not what it suffered from another rank
  int exit_code = 1;  // with which the process is going to end
  std::string cause;
};

// Fits into one write to a pipe.
std::string encode(const Report& report);
// Nothing unless the text is whole.
std::optional<Report> decode_report(const std::string& text);

enum class NoteKind {
  ready,   // from here on a signal stops the rank after a step
  signal,  // a first one reached this rank, not from the launcher
  again    // a second one did
};
struct Note {
  NoteKind kind = NoteKind::ready;
  int signal = 0;
};
// Safe in a signal handler. Does nothing without a launcher (fd -1).
void write_note(int fd, Note note);
// Takes the whole notes off the front of `text`.
std::vector<Note> take_notes(std::string& text);

// What asks a run to stop: supervisors, a terminal, its hang-up, and Slurm's --signal=USR1. Those that are ignored
// when the process begins (nohup) stay so.
std::vector<int> stop_signals();
const char* stop_signal_name(int signal);  // "SIGTERM"

// Supervisors send to all processes of a group or a cgroup, timeout(1) even twice to its child; a person who means it
// sends again later.

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
