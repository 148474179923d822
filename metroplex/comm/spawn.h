// Our own launcher: starts a command once a rank on this machine, watches the processes, and stops all of them when
// one fails. The ranks read their place with launch_from_environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/failure.h"

namespace metroplex::comm {

// What a signal does: the first stops the ranks after a step (or ends them, where one has not said that it is ready
// to be stopped), a second one ends them.
enum class SignalStage { first, too_early, again };

// The value of the signal (sigqueue) by which the launcher hands a request on. A rank's own signals carry none.
inline constexpr int kOrderStop = 1, kOrderEnd = 2;

struct SpawnOptions {
  std::vector<std::string> command;  // program and arguments; looked up in PATH without a '/'
  int num_processes = 1;
  uint16_t port = 0;  // of the store, on the loopback; 0: a free one
  // What the others get to stop by themselves after the first failure, before they are killed.
  std::chrono::milliseconds grace{800};
  int stopped_code = -1;  // an exit code that is no failure but a stop on request: the others get all their time
  DescribeRank describe = describe_plainly;
  // The ranks talk to a terminal, which sends a SIGINT to each of them: from when all are ready (report.h) on it is
  // theirs, and ends nothing here.
  bool dialog = false;
  // One of stop_signals() reached the launcher or a rank; called before the ranks get their orders, once a stage.
  std::function<void(int signal, SignalStage stage)> on_signal = nullptr;
};

struct SpawnResult {
  int exit_code = 0;    // of the rank that failed first; 128 + signal when it was killed
  int rank = -1;        // that rank; -1: none failed
  int signal = 0;       // the request that ended the ranks before they could stop
  std::string message;  // "rank 3 (tp 1 pp 0 dp 1) failed: ...", with its cause where the rank could tell
};

// Blocks until all processes have ended. What stop_signals() names is handed on as orders (see above), so that a
// signal to the group, to this process alone or to one rank is one request. Output goes where this process' output
// goes. Throws when the port is in use.
SpawnResult spawn_processes(const SpawnOptions& options);

}  // namespace metroplex::comm
