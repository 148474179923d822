// From "N ranks" to a World in every rank: as threads of this process, or as one of the processes that a launcher
// started. A rank that fails stops all the others within a second, and what is thrown names the rank, its coordinates
// and the cause.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/world.h"

namespace metroplex::comm {

class GlooContext;   // backends/gloo.h
class NcclContext;   // backends/nccl.h
class VirtualClock;  // backends/virtual_clock.h

using RankBody = std::function<void(const World&)>;

struct ThreadsOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // of one wait for other ranks
  bool rendezvous = false;                                      // sends complete only when received
  int threads_per_rank = 1;                                     // of libtorch's operators
  std::shared_ptr<Traffic> traffic = nullptr;                   // counts what the groups carry; null: not counted
  int gpu = -1;                                                 // on which all ranks compute; -1: the CPU
  // Measures each rank from the start of `body` to its end; needs one thread a rank and no GPU. Null: nothing.
  std::shared_ptr<VirtualClock> clock = nullptr;
};

// Runs `body` on `world_size` threads and joins them. The failure that came first is thrown (with_rank of failure.h).
void run_threads(int world_size, const topology::RankGrid& grid, const ThreadsOptions& options, const RankBody& body);

// Where this process stands among those that a launcher started.
struct LaunchEnvironment {
  std::string launcher;  // "metroplex", "torchrun", "Open MPI", "Slurm"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 29500;
  bool agent_store = false;  // the launcher serves the store
  int64_t attempt = 0;       // how often torchrun has restarted the job
  std::string secret{};      // METROPLEX_SECRET: authenticates the ranks to each other
  std::string interface {};  // GLOO_SOCKET_IFNAME: network interfaces that the environment chose
  int listen_fd = -1;        // rank 0 of our own launcher: the open socket of master_port
  int cause_fd = -1;         // our own launcher: where a failing rank says why
};

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_environment(const std::string& name);

// Looks for METROPLEX_RANK, RANK (torchrun), OMPI_COMM_WORLD_RANK, SLURM_PROCID, in this order. Nothing when there is
// no launcher, and in a batch script of Slurm; base::Error("comm", ...) naming the variables that are missing or
// wrong when there is half of one.
std::optional<LaunchEnvironment> launch_from_environment(const Environment& environment = process_environment);

// Slurm's variables, but no srun around this process: a batch script, or the shell of salloc. It is one process,
// whatever the job's number of tasks, which is returned. 0: this is none.
int tasks_of_slurm_batch(const Environment& environment = process_environment);

enum class ProcessBackend { gloo, nccl };

struct ProcessOptions {
  ProcessBackend backend = ProcessBackend::gloo;
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  std::string interface {};  // network interfaces of the control plane; "": the environment's, else see GlooOptions
  int threads_per_rank = 1;  // of libtorch's operators
  int gpu = -1;              // on which this rank computes; -1: the CPU. nccl wants one
  std::shared_ptr<Traffic> traffic = nullptr;
  // See GlooOptions: ends a process that cannot stop by itself. Only apps/ should hand one in.
  std::function<void(const std::exception_ptr& failure)> on_stuck = nullptr;
  // With which code this process is going to exit because of `failure`: told to our own launcher with the cause.
  std::function<int(const std::exception_ptr& failure)> exit_code = nullptr;
  // Stands in for make_nccl_context in tests.
  std::function<std::shared_ptr<NcclContext>(GlooContext& control)> make_nccl = nullptr;
};

// Runs `body` as one rank. A failure is told to the other ranks and to our own launcher first; only then are
// communicators destroyed, which may block, and the failure is thrown as with_rank.
void run_process(const LaunchEnvironment& launch, const topology::RankGrid& grid, const ProcessOptions& options,
                 const RankBody& body);

// Instead of run_process, by a rank that cannot start: the others, who wait for it, throw PeerFailure with the cause.
// Does nothing where our own launcher watches, or nobody waits. Rank 0 stays until the others have heard it, or 20 s.
// Throws nothing.
void refuse_to_start(const LaunchEnvironment& launch, const std::string& cause);

// The settings of a rank's thread: `num_threads` for operators, backward in the calling thread, the device.
void prepare_rank_thread(int num_threads, c10::Device device = c10::kCPU);

}  // namespace metroplex::comm
