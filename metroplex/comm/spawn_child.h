// One process of a rank as its launcher sees it, and how it is started.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

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
  std::string text;    // what came through cause_fd and is not understood yet
  bool ready = false;  // a signal stops it after a step, and does not end it
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
  explicit Listener(uint16_t port);  // 0: a free one
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

// Starts one rank with the signal mask `mask`. It ends with the launcher's thread, whatever ends that.
Child start_child(int rank, const SpawnOptions& options, const Listener& listener, const sigset_t& mask);

}  // namespace metroplex::comm
