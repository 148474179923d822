// Our own launcher: starts a command once a rank on this machine, watches the processes, and stops all of them when
// one fails. The ranks read their place with launch_from_environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/failure.h"

namespace metroplex::comm {

struct SpawnOptions {
  std::vector<std::string> command;  // program and arguments; looked up in PATH without a '/'
  int num_processes = 1;
  uint16_t port = 0;  // of the store, on the loopback; 0: a free one
  // What the others get to stop by themselves after the first failure, before they are killed.
  std::chrono::milliseconds grace{800};
  int stopped_code = -1;  // an exit code that is no failure but a stop on request: the others get all their time
  DescribeRank describe = describe_plainly;
};

struct SpawnResult {
  int exit_code = 0;    // of the rank that failed first; 128 + signal when it was killed
  int rank = -1;        // that rank; -1: none failed
  std::string message;  // "rank 3 (tp 1 pp 0 dp 1) failed: ...", with its cause where the rank could tell
};

// Blocks until all processes have ended. SIGTERM is handed on to all of them; SIGINT reaches them through the
// terminal. Output goes where this process' output goes. Throws when the port is in use.
SpawnResult spawn_processes(const SpawnOptions& options);

}  // namespace metroplex::comm
