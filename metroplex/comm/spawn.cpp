#include "comm/spawn.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "comm/report.h"

namespace metroplex::comm {
namespace {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t pid = -1;
  int cause_fd = -1;
  bool ended = false;
  bool killed_by_us = false;
  bool stopped = false;  // ended with SpawnOptions::stopped_code
  int status = 0;
  std::string text;  // what came through cause_fd
  std::optional<Report> report;
  int64_t noticed = -1;  // round in which the launcher saw that it fails

  bool failed() const { return ended && status != 0 && !stopped; }
  bool fails() const { return failed() || report; }
  // Of those seen to fail in one round, what a rank suffered because of others comes last, and one that something
  // outside killed first: it is the cause of whatever its peers then ran into.
  int blame() const {
    if (report) return report->own ? 1 : 3;
    if (killed_by_us) return 4;
    return WIFSIGNALED(status) ? 0 : 2;
  }
};

// A socket listening on the loopback; closes itself.
class Listener {
 public:
  explicit Listener(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    MPX_CHECK(fd_ >= 0, "comm", "no socket: ", std::strerror(errno));
    const int one = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const bool bound =
        ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && ::listen(fd_, 1024) == 0;
    if (!bound) {
      const std::string error = std::strerror(errno);
      ::close(fd_);
      throw base::Error("comm", base::concat("port ", port, " of 127.0.0.1 cannot be used: ", error,
                                             "; choose another port, or 0 for a free one"));
    }
    socklen_t size = sizeof address;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { ::close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int fd() const { return fd_; }
  uint16_t port() const { return port_; }

 private:
  int fd_;
  uint16_t port_ = 0;
};

// Signals that the launcher waits for instead of being interrupted by them.
class WatchedSignals {
 public:
  WatchedSignals() {
    sigemptyset(&watched_);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT}) sigaddset(&watched_, signal);
    pthread_sigmask(SIG_BLOCK, &watched_, &before_);
  }
  ~WatchedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WatchedSignals(const WatchedSignals&) = delete;
  WatchedSignals& operator=(const WatchedSignals&) = delete;
  const sigset_t& before() const { return before_; }
  // The next signal, or -1 after a moment.
  int next() const {
    const timespec moment{0, 20'000'000};
    return sigtimedwait(&watched_, nullptr, &moment);
  }

 private:
  sigset_t watched_{}, before_{};
};

std::vector<std::string> environment_of(int rank, const SpawnOptions& options, const Listener& listener,
                                        int cause_fd) {
  std::vector<std::string> variables;
  bool has_threads = false;
  bool has_log_level = false;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    has_threads = has_threads || text.rfind("OMP_NUM_THREADS=", 0) == 0;
    has_log_level = has_log_level || text.rfind("TORCH_CPP_LOG_LEVEL=", 0) == 0;
    if (text.rfind("METROPLEX_", 0) != 0 || text.rfind("METROPLEX_DEPS", 0) == 0) variables.push_back(text);
  }
  const auto set = [&](const std::string& name, const std::string& value) {
    variables.push_back(name + "=" + value);
  };
  set("METROPLEX_RANK", std::to_string(rank));
  set("METROPLEX_WORLD_SIZE", std::to_string(options.num_processes));
  set("METROPLEX_LOCAL_RANK", std::to_string(rank));
  set("METROPLEX_LOCAL_WORLD_SIZE", std::to_string(options.num_processes));
  set("METROPLEX_MASTER_ADDR", "127.0.0.1");
  set("METROPLEX_MASTER_PORT", std::to_string(listener.port()));
  set("METROPLEX_CAUSE_FD", std::to_string(cause_fd));
  if (rank == 0) set("METROPLEX_LISTEN_FD", std::to_string(listener.fd()));
  if (!has_threads) set("OMP_NUM_THREADS", "1");
  if (!has_log_level) set("TORCH_CPP_LOG_LEVEL", "ERROR");  // a closed connection is told once, by us
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& text : strings) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

void keep_over_exec(int fd) { ::fcntl(fd, F_SETFD, 0); }

Child start(int rank, const SpawnOptions& options, const Listener& listener, const WatchedSignals& signals) {
  int pipe_ends[2];
  MPX_CHECK(::pipe2(pipe_ends, O_CLOEXEC) == 0, "comm", "no pipe: ", std::strerror(errno));
  std::vector<std::string> command = options.command;
  std::vector<std::string> variables = environment_of(rank, options, listener, pipe_ends[1]);
  const std::vector<char*> argv = pointers(command);
  const std::vector<char*> envp = pointers(variables);
  const std::string not_started = encode(Report{true, 127, "the program could not be started"});
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {  // only async-signal-safe calls from here to exec
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    pthread_sigmask(SIG_SETMASK, &signals.before(), nullptr);
    keep_over_exec(pipe_ends[1]);
    if (rank == 0) keep_over_exec(listener.fd());
    ::execvpe(argv[0], argv.data(), envp.data());
    [[maybe_unused]] const ssize_t written = ::write(pipe_ends[1], not_started.data(), not_started.size());
    ::_exit(127);
  }
  ::close(pipe_ends[1]);
  MPX_CHECK(pid > 0, "comm", "rank ", rank, " could not be started: ", std::strerror(errno));
  ::fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
  Child child;
  child.pid = pid;
  child.cause_fd = pipe_ends[0];
  return child;
}

void read_report(Child& child) {
  char buffer[4096];
  ssize_t size = 0;
  while ((size = ::read(child.cause_fd, buffer, sizeof buffer)) > 0)
    child.text.append(buffer, static_cast<size_t>(size));
  if (!child.report) child.report = decode_report(child.text);
}

// Who has ended, and who has said that it will.
void look_after(std::vector<Child>& children, int64_t round, int stopped_code) {
  for (Child& child : children) {
    if (child.ended) continue;
    child.ended = ::waitpid(child.pid, &child.status, WNOHANG) == child.pid;
    read_report(child);
    if (child.ended) {
      ::close(child.cause_fd);
      child.stopped = WIFEXITED(child.status) && WEXITSTATUS(child.status) == stopped_code;
    }
    if (child.noticed < 0 && child.fails()) child.noticed = round;
  }
}

void signal_all(std::vector<Child>& children, int signal) {
  for (Child& child : children) {
    if (!child.ended) ::kill(child.pid, signal);
    if (!child.ended && signal == SIGKILL) child.killed_by_us = true;
  }
}

template <class Which>
bool any(const std::vector<Child>& children, Which which) {
  for (const Child& child : children) {
    if (which(child)) return true;
  }
  return false;
}

// Who failed first: one that did so by itself goes before those that stopped because of another.
int first_to_fail(const std::vector<Child>& children) {
  constexpr int kBecauseOfAnother = 3;
  const auto place = [](const Child& child) {
    return std::tuple(child.blame() >= kBecauseOfAnother, child.noticed, child.blame());
  };
  int first = -1;
  for (size_t i = 0; i < children.size(); ++i) {
    if (!children[i].failed()) continue;
    if (first < 0 || place(children[i]) < place(children[static_cast<size_t>(first)])) first = static_cast<int>(i);
  }
  return first;
}

SpawnResult result_of(const std::vector<Child>& children, const SpawnOptions& options) {
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
  // It had said what it was going to exit with when it was killed for taking too long.
  if (child.report && child.killed_by_us) result.exit_code = child.report->exit_code;
  const std::string end =
      signalled && !child.killed_by_us
          ? base::concat("killed by signal ", WTERMSIG(child.status), " (", strsignal(WTERMSIG(child.status)), ")")
          : base::concat("exit code ", result.exit_code);
  const std::string cause = child.report ? child.report->cause : "";
  result.message = options.describe(result.rank) + " failed: " + (cause.empty() ? end : cause + " (" + end + ")");
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
      children.push_back(start(rank, options, listener, signals));
  } catch (...) {
    signal_all(children, SIGKILL);
    for (Child& child : children) ::waitpid(child.pid, nullptr, 0);
    throw;
  }
  std::optional<Clock::time_point> failed_at;
  for (int64_t round = 0; any(children, [](const Child& child) { return !child.ended; }); ++round) {
    if (signals.next() == SIGTERM) signal_all(children, SIGTERM);
    look_after(children, round, options.stopped_code);
    if (!failed_at && any(children, [](const Child& child) { return child.failed(); })) failed_at = Clock::now();
    if (failed_at && Clock::now() - *failed_at > options.grace) signal_all(children, SIGKILL);
  }
  return result_of(children, options);
}

}  // namespace metroplex::comm
