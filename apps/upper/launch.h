// How the ranks of a command come into being: as threads of this process, as processes that we start, or as the one
// rank that torchrun, Slurm or Open MPI started. The body is the same in all three.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "config/config.h"

namespace metroplex::apps {

struct RunArguments;

// An error before the ranks have met, of one that another launcher started: the others are waiting for it.
class NotStarted final : public base::Error {
 public:
  using base::Error::Error;
};
// Runs what a command does before launch_ranks; throws its errors as NotStarted. launch_ranks does so for its own
// part.
void before_ranks(const std::function<void()>& prepare);
// Tells the other ranks of a NotStarted, so that they end too; takes no longer than 20 s.
void tell_ranks(const std::exception& error);

// Number of ranks this command will run with: the launcher's environment, else run.nproc, else 1.
int64_t planned_world_size(const config::Run& run);

// Where the ranks of this command will compute, as launch_ranks decides it.
struct RankPlacing {
  bool gpu = false;
  bool shared = false;      // one GPU for all ranks
  std::string launcher;     // that started this process as one rank; empty: none did
  int64_t rank = 0;         // with a launcher
  int64_t local_ranks = 1;  // of this machine
};
// Throws base::Error("config") where GPUs are asked for and are not there.
RankPlacing planned_placing(const config::Run& run, int64_t world_size);
// The same whatever this machine has: where GPUs are asked for, they are there.
RankPlacing wished_placing(const config::Run& run, int64_t world_size);

// Threads of libtorch's operators on each rank: run.threads_per_rank, or an equal share of the machine's processors.
int threads_per_rank(const config::Run& run, int64_t local_ranks);

// Sets run.nproc to the number of ranks of the launch script, unless run.nproc or an outer launcher gives another
// one. Throws base::Error("config") if the number is needed and unknown.
void take_script_ranks(config::Run& run, const RunArguments& parsed);

// run.deterministic_mode, for libtorch: of this process, from here on. launch_ranks does it for its ranks.
void make_deterministic();

// Runs `body` on every rank that this process is responsible for and returns the exit code of the command: 0, or that
// of a child process that failed. `command_line` is argv: what a child process is started with. Errors of ranks in
// this process are thrown (base::Error names rank, coordinates and cause). `dialog`: once ready, processes have
// SIGINT for themselves (comm/spawn.h).
int launch_ranks(const config::Config& config, const std::vector<std::string>& command_line,
                 const std::function<void(const comm::World&)>& body, bool dialog = false);

// argv of this process again, for child processes.
std::vector<std::string> command_line(const std::string& command, const std::vector<std::string>& arguments);

// What is said of an error: one line, or with `trace` libtorch's stack trace where it comes from there.
std::string message_of(const std::exception& error, bool trace);

}  // namespace metroplex::apps
