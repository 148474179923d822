// Runs N ranks, each with a World: as threads of this process, or as one process of a launcher. If a rank fails, all
// others stop within a second. The exception thrown contains the rank, its coordinates and the cause.
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
class GroupBackend;  // backends/backend.h
class NcclContext;   // backends/nccl.h

using RankBody = std::function<void(const World&)>;

struct ThreadsOptions;
// Observes the ranks of run_threads, for example with a virtual clock (lab/clock). start, stop and wrap are called on
// the rank's thread.
class RankObserver {
 public:
  virtual ~RankObserver() = default;
  virtual void check(int world_size, const ThreadsOptions& options) const = 0;  // called once, before any rank starts
  virtual void start(int rank) = 0;
  virtual void stop(int rank) = 0;
  virtual std::shared_ptr<GroupBackend> wrap(const GroupSpec& group, int rank, const ThreadsOptions& options,
                                             std::shared_ptr<GroupBackend> inner) = 0;
};

struct ThreadsOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // limit of one wait for other ranks
  bool rendezvous = false;                                      // a send completes only when it is received
  int threads_per_rank = 1;                                     // for libtorch operators
  std::shared_ptr<Traffic> traffic = nullptr;
  int gpu = -1;  // device of all ranks; -1: CPU
  std::shared_ptr<RankObserver> observer = nullptr;
};

// Runs `body` on `world_size` threads and joins them. Throws the first failure (see with_rank in failure.h).
void run_threads(int world_size, const topology::RankGrid& grid, const ThreadsOptions& options, const RankBody& body);

// The position of this process in a launched job.
struct LaunchEnvironment {
  std::string launcher;  // "metroplex", "torchrun", "Open MPI", "Slurm"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 29500;
  bool agent_store = false;  // the launcher serves the rendezvous store
  int64_t attempt = 0;       // number of restarts by torchrun
  std::string secret{};      // METROPLEX_SECRET: authenticates the ranks to each other
  std::string interface {};  // GLOO_SOCKET_IFNAME: network interfaces
  int listen_fd = -1;        // built-in launcher, rank 0: open listening socket of master_port
  int cause_fd = -1;         // built-in launcher: pipe on which a failing rank reports its cause
};

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> process_environment(const std::string& name);

// Detects the launcher from METROPLEX_RANK, RANK (torchrun), OMPI_COMM_WORLD_RANK and SLURM_PROCID, in this order.
// Returns nothing without a launcher and in a Slurm batch script. Throws base::Error("comm", ...) with the missing or
// invalid variables if only some are set.
std::optional<LaunchEnvironment> launch_from_environment(const Environment& environment = process_environment);

// Returns the task count of the job if this process has Slurm's variables but was not started by srun. Such a
// process is a batch script or an salloc shell. Returns 0 otherwise.
int slurm_batch_tasks(const Environment& environment = process_environment);

enum class ProcessBackend { gloo, nccl };

struct ProcessOptions {
  ProcessBackend backend = ProcessBackend::gloo;
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  std::string interface {
  };  // network interfaces of the control plane; "": from the environment, else see GlooOptions
  int threads_per_rank = 1;  // for libtorch operators
  int gpu = -1;              // device of this rank; -1: CPU. nccl needs a GPU
  bool shares_gpu = false;   // NCCL ranks may use the same GPU; they communicate over sockets
  std::shared_ptr<Traffic> traffic = nullptr;
  // Ends a process that cannot stop by itself (see GlooOptions). Only apps/ should set it.
  std::function<void(const std::exception_ptr& failure)> on_stuck = nullptr;
  // Returns the exit code for `failure`; it is sent to the built-in launcher with the cause.
  std::function<int(const std::exception_ptr& failure)> exit_code = nullptr;
  // Replaces make_nccl_context in tests.
  std::function<std::shared_ptr<NcclContext>(GlooContext& control)> make_nccl = nullptr;
};

// Runs `body` as one rank. A failure is first reported to the other ranks and to the built-in launcher. Then the
// communicators are destroyed, which may block, and the failure is thrown through with_rank.
void run_process(const LaunchEnvironment& launch, const topology::RankGrid& grid, const ProcessOptions& options,
                 const RankBody& body);

// Replaces run_process on a rank that cannot start: the other ranks throw PeerFailure with `cause`. No-op under
// the built-in launcher or if no rank waits. Rank 0 returns when the others have read the cause, or after 20 s.
// Never throws.
void refuse_to_start(const LaunchEnvironment& launch, const std::string& cause);

// Sets up a rank's thread: `num_threads` for operators, backward on the calling thread, and the device.
void prepare_rank_thread(int num_threads, c10::Device device = c10::kCPU);

}  // namespace metroplex::comm
