// The built-in launcher. It starts one process per rank on this machine and stops all of them when one fails. Each
// rank reads its position with launch_from_environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/failure.h"

namespace metroplex::comm {

// Effect of a signal. The first stops the ranks after a step, or ends them if a rank has not reported that it can be
// stopped (too_early). A second one ends them.
enum class SignalStage { first, too_early, again };

// Value of the signal (sigqueue) with which the launcher forwards a stop request. A signal from elsewhere carries no
// value.
inline constexpr int kOrderStop = 1, kOrderEnd = 2;

struct SpawnOptions {
  std::vector<std::string> command;  // program and arguments; PATH is searched if the program has no '/'
  int num_processes = 1;
  uint16_t port = 0;  // of the store, on the loopback; 0: a free port
  // Time for the other ranks to stop after the first failure, before they are killed.
  std::chrono::milliseconds grace{800};
  // A rank that stays stopped by a signal for longer before it is ready (report.h) fails, because the other ranks
  // wait for its connection.
  std::chrono::milliseconds pause_limit{15000};
  int pause_code = 1;     // exit code after pause_limit
  int stopped_code = -1;  // exit code of a requested stop, which is not a failure: no time limit for the other ranks
  RankFormatter rank_name = format_rank;
  // The ranks read from a terminal, which sends SIGINT to each of them. Once all ranks are ready (report.h), they
  // handle SIGINT and the launcher ignores it.
  bool dialog = false;
  // Runs once per stage when a signal of stop_signals() reaches the launcher or a rank, before orders go to the
  // ranks.
  std::function<void(int signal, SignalStage stage)> on_signal = nullptr;
};

struct SpawnResult {
  int exit_code = 0;    // of the rank that failed first; 128 + signal if it was killed
  int rank = -1;        // rank that failed first; -1: none
  int signal = 0;       // the request that ended the ranks before they could stop
  std::string message;  // "rank 3 (tp 1 pp 0 dp 1) failed: ...", with the cause if the rank reported one
};

// Blocks until all processes have ended. Signals of stop_signals() are forwarded as orders (kOrderStop, kOrderEnd). A
// signal to the process group, to the launcher only or to one rank is therefore one request. Ranks inherit stdout and
// stderr. Throws if the port is in use.
SpawnResult spawn_processes(const SpawnOptions& options);

}  // namespace metroplex::comm
