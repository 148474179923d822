// Starts the ranks of a command: as threads, as child processes, or as the one rank that torchrun, Slurm or Open
// MPI started. All three run the same body.
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

// An error on a rank of an outer launcher before the ranks connect. The other ranks still wait for this rank.
class StartError final : public base::Error {
 public:
  using base::Error::Error;
};
// Runs a command's work before launch_ranks and rethrows its errors as StartError. launch_ranks does the same for its
// own part.
void before_ranks(const std::function<void()>& prepare);
// Reports a StartError to the other ranks, so that they end too; takes at most 20 s.
void tell_ranks(const std::exception& error);

// Returns the number of ranks of this command: from the launcher's environment, else run.nproc, else 1.
int64_t planned_world_size(const config::Run& run);

struct RankPlacing {
  bool gpu = false;
  bool shared = false;      // all ranks share one GPU
  std::string launcher;     // the outer launcher of this process; empty: none
  int64_t rank = 0;         // if there is a launcher
  int64_t local_ranks = 1;  // ranks on this machine
};
// Throws base::Error("config") if GPUs are requested but not available.
RankPlacing planned_placing(const config::Run& run, int64_t world_size);
// The same without checking this machine: requested GPUs are assumed to exist.
RankPlacing requested_placing(const config::Run& run, int64_t world_size);

// Returns the threads of libtorch's operators per rank: run.threads_per_rank, or an equal share of the machine's
// processors.
int threads_per_rank(const config::Run& run, int64_t local_ranks);
// Sets the number of threads of libtorch's operators to that of a rank. Each thread has a workspace, which is part of
// the predicted memory.
void use_threads_of_rank(const config::Run& run, int64_t local_ranks);

// Sets run.nproc to the number of ranks of the launch script, unless run.nproc or an outer launcher has another
// number. Throws base::Error("config") if the number is needed and unknown.
void take_script_ranks(config::Run& run, const RunArguments& parsed);

// Applies run.deterministic_mode to libtorch for the rest of this process. launch_ranks calls it for its ranks.
void make_deterministic();

// Runs `body` on every rank of this process and returns the exit code of the command: 0, or that of a failed child
// process. `command_line` is the argv of child processes. Rethrows errors of ranks in this process (base::Error with
// rank, coordinates and cause). `dialog`: after the ready note, the processes handle SIGINT themselves
// (comm/spawn.h).
int launch_ranks(const config::Config& config, const std::vector<std::string>& command_line,
                 const std::function<void(const comm::World&)>& body, bool dialog = false);

// Returns argv of this process for child processes.
std::vector<std::string> command_line(const std::string& command, const std::vector<std::string>& arguments);

// Returns the message of an error: one line, or with `trace` also libtorch's stack trace.
std::string message_of(const std::exception& error, bool trace);

}  // namespace metroplex::apps
