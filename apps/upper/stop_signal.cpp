#include "upper/stop_signal.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "comm/report.h"

namespace metroplex::apps {
namespace {

using comm::NoteKind;
using comm::SignalStage;
using Line = std::array<char, 256>;

// State of the signal handler, which can access only globals.
struct StopState {
  std::atomic<bool> requested{false}, interrupted{false};
  comm::SignalCount count;  // of signals from outside the launcher
  int launcher_fd = -1;
  pid_t launcher = -1;
  bool speaks = true;
  std::array<Line, 32> first, again;  // by signal
};
StopState stop_state;

int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000} * now.tv_sec + now.tv_nsec / 1'000'000;
}

void write_line(const Line& line) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), ::strnlen(line.data(), line.size()));
}

[[noreturn]] void end_at_once(int signal) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  ::signal(signal, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);  // raise() does not end the first process of a container
}

void on_signal(int signal, siginfo_t* info, void*) {
  const int error = errno;
  StopState& state = stop_state;
  const bool order = state.launcher_fd >= 0 && info->si_code == SI_QUEUE && info->si_pid == state.launcher;
  if (order) {
    if (info->si_value.sival_int == comm::kOrderEnd) end_at_once(signal);
    state.requested = true;
  } else {
    const comm::StopAction action = state.count.next(now_ms());
    const bool again = action == comm::StopAction::end;
    if (action != comm::StopAction::none) {
      state.requested = true;
      comm::write_note(state.launcher_fd, {again ? NoteKind::again : NoteKind::signal, signal});
      if (state.speaks) write_line((again ? state.again : state.first)[static_cast<size_t>(signal)]);
    }
    if (again) end_at_once(signal);
  }
  errno = error;
}

Line format_stop_line(int signal, SignalStage stage, bool saves) {
  const std::string text = stop_line(signal, stage, saves) + "\n";
  Line line{};
  text.copy(line.data(), line.size() - 1);
  return line;
}

}  // namespace

std::string stop_line(int signal, SignalStage stage, bool saves) {
  const std::string name = comm::stop_signal_name(signal);
  if (stage == SignalStage::too_early) return "metroplex: " + name + ": ending at once; there is nothing to save";
  if (stage == SignalStage::again)
    return "metroplex: a second " + name + ": ending at once; progress since the last save is lost";
  return "metroplex: " + name +
         (saves ? ": saving and stopping after this step"
                : ": stopping after this step (checkpoint.save is not set)") +
         "; a second one ends the run at once, without saving";
}

void take_stop_signals(const StopOptions& options) {
  StopState& state = stop_state;
  state.launcher_fd = options.launcher_fd;
  state.launcher = ::getppid();
  state.speaks = options.speaks;
  const std::vector<int> signals = comm::stop_signals();
  for (const int signal : signals) {
    state.first.at(static_cast<size_t>(signal)) = format_stop_line(signal, SignalStage::first, options.saves);
    state.again.at(static_cast<size_t>(signal)) = format_stop_line(signal, SignalStage::again, options.saves);
  }
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  sigemptyset(&action.sa_mask);
  for (const int signal : signals) sigaddset(&action.sa_mask, signal);
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  for (const int signal : signals) ::sigaction(signal, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // the reader of the console may end before the run
  comm::write_note(state.launcher_fd, {NoteKind::ready, 0});
}

void take_interrupts(int launcher_fd) {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_state.interrupted = true; };
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  comm::write_note(launcher_fd, {NoteKind::ready, 0});
}

bool take_interrupt() { return stop_state.interrupted.exchange(false); }

bool stop_requested() { return stop_state.requested; }

}  // namespace metroplex::apps
