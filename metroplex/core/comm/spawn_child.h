// One rank's process as seen by the launcher.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/report.h"
#include "comm/spawn.h"

namespace metroplex::comm {

struct Child {
  pid_t pid = -1;
  int cause_fd = -1;
  bool ended = false;
  bool killed_by_us = false;
  bool stopped = false;  // ended with SpawnOptions::stopped_code
  int status = 0;
  std::string text;    // received through cause_fd, not yet parsed
  bool ready = false;  // a signal stops it after a step instead of ending it
  std::optional<Report> report;
  bool paused = false;  // stopped by a signal such as SIGSTOP
  std::chrono::milliseconds paused_for{0};
  int64_t noticed = -1;  // polling round in which the launcher first noticed the failure

  bool has_failed() const { return ended && status != 0 && !stopped; }
  bool is_failing() const { return has_failed() || report; }
  // Order of failures noticed in one round; the smallest is the cause. A rank killed from outside comes first,
  // because its peers then fail too. Failures caused by other ranks come last.
  int blame() const {
    if (report) return report->own ? 1 : 3;
    if (killed_by_us) return 4;
    return WIFSIGNALED(status) ? 0 : 2;
  }
};

// Owns a socket that listens on the loopback.
class Listener {
 public:
  explicit Listener(uint16_t port);  // 0: a free port
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int fd() const { return fd_; }
  uint16_t port() const { return port_; }
  const std::string& secret() const { return secret_; }  // of the run

 private:
  const std::string secret_;
  int fd_;
  uint16_t port_ = 0;
};

// Starts one rank with signal mask `mask`. The kernel kills the rank when the launcher's thread ends.
Child start_child(int rank, const SpawnOptions& options, const Listener& listener, const sigset_t& mask);

}  // namespace metroplex::comm
