#include "comm/spawn.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "comm/spawn_child.h"
#include "comm/report.h"

namespace metroplex::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Signals that the launcher waits for, so they do not interrupt it. SIGPIPE is ignored because Ctrl-C also ends the
// reader of its output (tee).
class WatchedSignals {
 public:
  WatchedSignals() {
    sigemptyset(&watched_);
    sigaddset(&watched_, SIGCHLD);
    for (const int signal : stop_signals()) sigaddset(&watched_, signal);
    pthread_sigmask(SIG_BLOCK, &watched_, &before_);
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &standard, &child_before_);  // if SIGCHLD is inherited as ignored, waitpid finds no child
    struct sigaction ignored {};
    ignored.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignored, &pipe_before_);
  }
  ~WatchedSignals() {
    ::sigaction(SIGPIPE, &pipe_before_, nullptr);
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WatchedSignals(const WatchedSignals&) = delete;
  WatchedSignals& operator=(const WatchedSignals&) = delete;
  const sigset_t& before() const { return before_; }
  // Returns the next signal, or -1 after 20 ms.
  int next() const {
    const timespec moment{0, 20'000'000};
    return sigtimedwait(&watched_, nullptr, &moment);
  }

 private:
  sigset_t watched_{}, before_{};
  struct sigaction child_before_ {};
  struct sigaction pipe_before_ {};
};

// Reads new messages of a rank. Stores its report and returns its notes about signals.
std::vector<Note> read_messages(Child& child) {
  char buffer[4096];
  ssize_t size = 0;
  while ((size = ::read(child.cause_fd, buffer, sizeof buffer)) > 0)
    child.text.append(buffer, static_cast<size_t>(size));
  if (child.report) return {};
  std::vector<Note> notes = parse_notes(child.text);
  child.ready =
      child.ready || std::erase_if(notes, [](const Note& note) { return note.kind == NoteKind::ready; }) > 0;
  child.report = decode_report(child.text);
  return notes;
}

// Updates whether a signal has stopped a child, and whether it has ended.
void read_state(Child& child) {
  int status = 0;
  while (!child.ended && ::waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == child.pid) {
    child.paused = WIFSTOPPED(status);
    child.paused_for = {};
    child.ended = !WIFSTOPPED(status) && !WIFCONTINUED(status);
    if (child.ended) child.status = status;
  }
}

// Updates which ranks have ended or reported a failure. Returns the notes about signals of all ranks.
std::vector<Note> poll_children(std::vector<Child>& children, int64_t round, int stopped_code) {
  std::vector<Note> all;
  for (Child& child : children) {
    if (child.ended) continue;
    read_state(child);
    const std::vector<Note> notes = read_messages(child);
    all.insert(all.end(), notes.begin(), notes.end());
    if (child.ended) {
      ::close(child.cause_fd);
      child.stopped = WIFEXITED(child.status) && WEXITSTATUS(child.status) == stopped_code;
    }
    if (child.noticed < 0 && child.is_failing()) child.noticed = round;
  }
  return all;
}

void kill_all(std::vector<Child>& children) {
  for (Child& child : children) {
    if (child.ended) continue;
    ::kill(child.pid, SIGKILL);
    child.killed_by_us = true;
  }
}

// Ends ranks that a signal has stopped for too long. `elapsed` is since the last call.
void end_paused(std::vector<Child>& children, const SpawnOptions& options, Clock::duration elapsed) {
  constexpr std::chrono::milliseconds kMaxRound{100};  // a longer round means that the launcher was stopped too
  for (Child& child : children) {
    if (child.ended || !child.paused || child.ready || child.report) continue;
    child.paused_for += std::min(std::chrono::duration_cast<std::chrono::milliseconds>(elapsed), kMaxRound);
    if (child.paused_for < options.pause_limit) continue;
    child.report = Report{true, options.pause_code,
                          base::concat("a signal such as SIGSTOP stopped it for ",
                                       static_cast<double>(options.pause_limit.count()) / 1000,
                                       " s; start the run again, and send SIGCONT sooner")};
    ::kill(child.pid, SIGKILL);
    child.killed_by_us = true;
  }
}

int64_t milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
}

// Forwards stop requests to the ranks as orders, which a rank can distinguish from other signals.
class Orders {
 public:
  Orders(const SpawnOptions& options, std::vector<Child>& children) : options_(options), children_(children) {}
  void on_own_signal(int signal) {
    if (options_.dialog && signal == SIGINT && !any_unready()) return;
    if (signal > 0 && signal != SIGCHLD) act(signal, requests_.signal(milliseconds()));
  }
  void on_rank_signal(const std::vector<Note>& notes) {
    for (const Note& note : notes) act(note.signal, requests_.on_rank_signal(note.kind == NoteKind::again));
  }
  int ended_by() const { return ended_by_; }

 private:
  void act(int signal, StopAction action) {
    if (action == StopAction::none || ended_by_ != 0) return;
    SignalStage stage = action == StopAction::stop ? SignalStage::first : SignalStage::again;
    if (action == StopAction::stop && (options_.dialog || any_unready())) stage = SignalStage::too_early;
    if (stage != SignalStage::first) ended_by_ = signal;
    if (options_.on_signal) options_.on_signal(signal, stage);
    sigval value{};
    value.sival_int = stage == SignalStage::first ? kOrderStop : kOrderEnd;
    for (const Child& child : children_) {
      if (!child.ended) ::sigqueue(child.pid, signal, value);
    }
  }
  bool any_unready() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return !child.ended && !child.ready; });
  }

  const SpawnOptions& options_;
  std::vector<Child>& children_;
  StopRequests requests_;
  int ended_by_ = 0;
};

template <class Which>
bool any(const std::vector<Child>& children, Which which) {
  for (const Child& child : children) {
    if (which(child)) return true;
  }
  return false;
}

// Returns the rank that failed first. Independent failures take precedence over failures caused by other ranks.
int first_to_fail(const std::vector<Child>& children) {
  constexpr int kBecauseOfAnother = 3;
  const auto failure_order = [](const Child& child) {
    return std::tuple(child.blame() >= kBecauseOfAnother, child.noticed, child.blame());
  };
  int first = -1;
  for (size_t i = 0; i < children.size(); ++i) {
    if (!children[i].has_failed()) continue;
    if (first < 0 || failure_order(children[i]) < failure_order(children[static_cast<size_t>(first)]))
      first = static_cast<int>(i);
  }
  return first;
}

SpawnResult make_result(const std::vector<Child>& children, const SpawnOptions& options) {
  SpawnResult result;
  result.rank = first_to_fail(children);
  if (result.rank < 0) {
    for (const Child& child : children) {
      if (child.stopped) result.exit_code = options.stopped_code;
    }
    return result;
  }
  const Child& child = children[static_cast<size_t>(result.rank)];
  const bool signalled = WIFSIGNALED(child.status);
  result.exit_code = signalled ? 128 + WTERMSIG(child.status) : WEXITSTATUS(child.status);
  // The rank had reported its exit code before it was killed for taking too long.
  if (child.report && child.killed_by_us) result.exit_code = child.report->exit_code;
  const std::string end =
      signalled && !child.killed_by_us
          ? base::concat("killed by signal ", WTERMSIG(child.status), " (", strsignal(WTERMSIG(child.status)), ")")
          : base::concat("exit code ", result.exit_code);
  const std::string cause = child.report ? child.report->cause : "";
  result.message = options.rank_name(result.rank) + " failed: " + (cause.empty() ? end : cause + " (" + end + ")");
  return result;
}

}  // namespace

SpawnResult spawn_processes(const SpawnOptions& options) {
  MPX_ASSERT(!options.command.empty() && options.num_processes > 0, "nothing to start");
  const Listener listener(options.port);
  const WatchedSignals signals;
  std::vector<Child> children;
  try {
    for (int rank = 0; rank < options.num_processes; ++rank)
      children.push_back(start_child(rank, options, listener, signals.before()));
  } catch (...) {
    kill_all(children);
    for (Child& child : children) ::waitpid(child.pid, nullptr, 0);
    throw;
  }
  Orders orders(options, children);
  std::optional<Clock::time_point> failed_at;
  auto last_round = Clock::now();
  for (int64_t round = 0; any(children, [](const Child& child) { return !child.ended; }); ++round) {
    orders.on_own_signal(signals.next());
    orders.on_rank_signal(poll_children(children, round, options.stopped_code));
    const auto now = Clock::now();
    end_paused(children, options, now - std::exchange(last_round, now));
    const bool is_failing =
        orders.ended_by() != 0 || any(children, [](const Child& child) { return child.has_failed(); });
    if (!failed_at && is_failing) failed_at = Clock::now();
    if (failed_at && Clock::now() - *failed_at > options.grace) kill_all(children);
  }
  SpawnResult result = make_result(children, options);
  if (orders.ended_by() != 0 && result.rank >= 0) {
    result.signal = orders.ended_by();
    result.exit_code = 128 + result.signal;
    result.message = base::concat("ended by ", strsignal(result.signal));
  }
  return result;
}

}  // namespace metroplex::comm
