#include "upper/launch.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <unistd.h>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/utf8.h"
#include "comm/failure.h"
#include "comm/launch.h"
#include "comm/network.h"
#include "comm/spawn.h"
#include "config/device_choice.h"
#include "device/architectures.h"
#include "device/cublas_workspace.h"
#include "device/device.h"
#include "kernels/compiled.h"
#include "program.h"
#include "run_config.h"
#include "run/same_config.h"
#include "upper/stop_signal.h"

namespace metroplex::apps {

int threads_per_rank(const config::Run& run, int64_t local_ranks) {
  if (run.threads_per_rank > 0) return static_cast<int>(run.threads_per_rank);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency() / std::max<int64_t>(1, local_ranks)));
}

void use_threads_of_rank(const config::Run& run, int64_t local_ranks) {
  const int count = threads_per_rank(run, local_ranks);
  // libtorch's pool waits forever for a thread that the system cannot start.
  base::run_together(count, [](int) {});
  at::set_num_threads(count);
}

namespace {

int failure_code(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) { return to_exit_code(error); } catch (...) {
    return kExitInternal;
  }
}

[[noreturn]] void end_stuck_process(const std::exception_ptr& failure) {
  std::fputs(("metroplex: " + base::escape_controls(comm::failure_cause(failure)) + "\n").c_str(), stderr);
  std::fflush(stderr);
  _exit(failure_code(failure));
}

// For tests of NCCL on a machine with fewer GPUs than ranks.
bool shares_gpus() {
  const char* const value = std::getenv("METROPLEX_SHARE_GPUS");
  return value != nullptr && std::string(value) == "1";
}

config::DeviceChoice device_choice(const config::Run& run, const std::optional<comm::LaunchEnvironment>& launch,
                                   int64_t world_size) {
  config::Machine machine;
  const int capability = device::compute_capability();
  if (!kernels::compiled()) {
    machine.no_gpu = "this program was built without nvcc";
  } else if (capability > 0 && !kernels::compiled_for(capability)) {
    const std::string wanted = device::architecture_for(capability);
    machine.no_gpu = base::concat(
        "this program contains code for ", kernels::architectures(), ", none of which runs on the sm_", capability,
        " of this machine; ",
        wanted.empty() ? "GPUs before sm_80 cannot multiply bf16" : "build with CMAKE_CUDA_ARCHITECTURES=" + wanted);
  } else {
    machine.num_gpus = device::device_count();
  }
  machine.local_ranks = launch ? launch->local_size : world_size;
  machine.shares_gpus = shares_gpus();
  if (launch) {
    machine.launcher = launch->launcher;
    machine.local_rank = launch->local_rank;
  }
  return config::choose_device(run, machine);
}

comm::ProcessOptions process_options(const config::Config& config, const comm::LaunchEnvironment& launch,
                                     int64_t world_size) {
  MPX_CHECK(config.run.backend != config::Backend::threads, "config",
            "run.backend = threads: runs all ranks in one process, but ", launch.launcher,
            " started this one as rank ", launch.rank, " of ", launch.world_size,
            "; use gloo or nccl, or start metroplex without it");
  const config::DeviceChoice where = device_choice(config.run, launch, world_size);
  comm::ProcessOptions options;
  options.backend = where.backend == config::Backend::nccl ? comm::ProcessBackend::nccl : comm::ProcessBackend::gloo;
  options.shares_gpu = shares_gpus();
  options.gpu = static_cast<int>(where.gpu);
  options.timeout = std::chrono::minutes(config.run.distributed_timeout_minutes);
  options.threads_per_rank = threads_per_rank(config.run, launch.local_size);
  options.interface = config.run.network_interface;
  options.on_stuck = end_stuck_process;
  options.exit_code = failure_code;
  return options;
}

int run_here(const config::Config& config, const topology::RankGrid& grid, const comm::LaunchEnvironment& launch,
             const comm::ProcessOptions& options, const comm::RankBody& body) {
  std::string difference;
  comm::run_process(launch, grid, options, [&](const comm::World& world) {
    difference = run::config_difference(config, world);
    if (difference.empty()) body(world);
  });
  // Not in the body: an exception on a rank would be reported as a failure of its peers.
  MPX_CHECK(difference.empty(), "config", "the ranks were started with different configurations: ", difference,
            "; give all of them the same files, options and environment");
  return kExitOk;
}

// srun also starts single programs. A step with one task has its own ranks if requested.
bool is_lone_task(const comm::LaunchEnvironment& launch) {
  return launch.launcher == "Slurm" && launch.world_size == 1;
}

// Returns the outer launcher of this process. A batch script of Slurm runs as one process; in a job of several tasks
// the user must specify its ranks.
std::optional<comm::LaunchEnvironment> outer_launch(const config::Run& run) {
  const int tasks = comm::slurm_batch_tasks();
  MPX_CHECK(
      run.nproc > 0 || tasks <= 1, "config", "run.nproc = 0: this is a batch script of a Slurm job of ", tasks,
      " tasks (SLURM_NTASKS), which has started no ranks; put srun before metroplex to start one rank per task, "
      "or give --nproc N for N ranks on this machine");
  std::optional<comm::LaunchEnvironment> launch = comm::launch_from_environment();
  if (launch && is_lone_task(*launch) && run.nproc > 1) launch.reset();
  return launch;
}

int spawn_here(const config::Config& config, const topology::RankGrid& grid,
               const std::vector<std::string>& command_line, bool dialog) {
  comm::SpawnOptions options;
  options.dialog = dialog;
  options.command = command_line;
  options.num_processes = grid.world_size();
  options.port = static_cast<uint16_t>(config.run.master_port);
  options.rank_name = comm::rank_formatter(grid);
  options.stopped_code = kExitStopped;
  options.pause_code = kExitPeer;
  options.on_signal = [&config](int signal, comm::SignalStage stage) {
    std::fprintf(stderr, "%s\n", stop_line(signal, stage, !config.checkpoint.save.empty()).c_str());
  };
  const comm::SpawnResult result = comm::spawn_processes(options);
  const bool is_reported = result.exit_code == kExitStopped || result.exit_code == kExitUnsaved || result.signal != 0;
  if (result.exit_code != kExitOk && !is_reported)
    std::fprintf(stderr, "metroplex: %s\n", base::escape_controls(result.message).c_str());
  return result.exit_code;
}

}  // namespace

void before_ranks(const std::function<void()>& prepare) {
  try {
    prepare();
  } catch (const base::Error& error) { throw StartError(error.room(), base::message_of(error)); }
}

void tell_ranks(const std::exception& error) {
  if (!dynamic_cast<const StartError*>(&error)) return;
  std::optional<comm::LaunchEnvironment> launch;
  try {
    launch = comm::launch_from_environment();
  } catch (const base::Error&) {
    return;  // an incomplete launcher environment has no address for the report
  }
  if (launch) comm::refuse_to_start(*launch, error.what());
}

int64_t planned_world_size(const config::Run& run) {
  if (const auto launch = outer_launch(run)) return launch->world_size;
  return std::max<int64_t>(1, run.nproc);
}

static RankPlacing make_placing(const std::optional<comm::LaunchEnvironment>& launch, int64_t world_size) {
  RankPlacing placing;
  placing.local_ranks = launch ? launch->local_size : world_size;
  if (launch) {
    placing.launcher = launch->launcher;
    placing.rank = launch->rank;
  }
  return placing;
}

RankPlacing planned_placing(const config::Run& run, int64_t world_size) {
  const auto launch = outer_launch(run);
  const config::DeviceChoice where = device_choice(run, launch, world_size);
  RankPlacing placing = make_placing(launch, world_size);
  placing.gpu = where.gpu >= 0;
  placing.shared = placing.gpu && (where.backend == config::Backend::threads || shares_gpus());
  return placing;
}

RankPlacing requested_placing(const config::Run& run, int64_t world_size) {
  const bool requests_cuda = run.device == config::Device::cuda || run.backend == config::Backend::nccl;
  if (!requests_cuda) return planned_placing(run, world_size);
  RankPlacing placing = make_placing(outer_launch(run), world_size);
  placing.gpu = true;
  placing.shared = run.backend == config::Backend::threads || shares_gpus();
  return placing;
}

void take_script_ranks(config::Run& run, const RunArguments& parsed) {
  if (run.nproc != 0) return;
  const auto launch = comm::launch_from_environment();
  if (launch && !is_lone_task(*launch)) return;
  MPX_CHECK(parsed.unknown_script_ranks.empty(), "config", parsed.unknown_script_ranks,
            ": the number of ranks is unknown; add --nproc N");
  run.nproc = parsed.script_ranks;
}

void make_deterministic() {
  // Without it cuBLAS may sum in another order on another stream, and libtorch refuses matrix products.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", device::kDeterministicCublas, /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // avoids a pass over every new tensor
}

int launch_ranks(const config::Config& config, const std::vector<std::string>& command_line,
                 const std::function<void(const comm::World&)>& body, bool dialog) {
  std::optional<comm::LaunchEnvironment> launch;
  std::optional<topology::RankGrid> grid;
  comm::ProcessOptions process;
  config::DeviceChoice where{};
  before_ranks([&] {
    launch = outer_launch(config.run);
    if (!config.run.network_interface.empty())
      comm::interface_addresses(config.run.network_interface, "run.network_interface");
    const int64_t world_size = launch ? launch->world_size : std::max<int64_t>(1, config.run.nproc);
    MPX_CHECK(!launch || config.run.nproc == 0 || config.run.nproc == world_size, "config", "run.nproc is ",
              config.run.nproc, ", but ", launch ? launch->launcher : "", " started ", world_size,
              " ranks; leave run.nproc at 0 there, or unset the launcher's variables (RANK, SLURM_PROCID, ...)");
    grid.emplace(static_cast<int>(world_size), config.parallel);
    if (launch) process = process_options(config, *launch, world_size);
    where = device_choice(config.run, launch, world_size);
    if (where.backend == config::Backend::gloo) comm::raise_file_limit(world_size);
  });
  if (config.run.deterministic_mode) make_deterministic();
  if (launch) return run_here(config, *grid, *launch, process, body);
  if (where.backend != config::Backend::threads) return spawn_here(config, *grid, command_line, dialog);
  comm::ThreadsOptions options;
  options.gpu = static_cast<int>(where.gpu);
  options.timeout = std::chrono::minutes(config.run.distributed_timeout_minutes);
  options.threads_per_rank = threads_per_rank(config.run, grid->world_size());
  comm::run_threads(grid->world_size(), *grid, options, body);
  return kExitOk;
}

std::vector<std::string> command_line(const std::string& command, const std::vector<std::string>& arguments) {
  // The real path, so that ps and top show the program's name. It no longer exists if the program was reinstalled.
  std::error_code code;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", code);
  const bool exists = !code && std::filesystem::exists(program, code);
  std::vector<std::string> line{exists ? program.string() : "/proc/self/exe", command};
  line.insert(line.end(), arguments.begin(), arguments.end());
  return line;
}

std::string message_of(const std::exception& error, bool trace) {
  const auto* in_rank = dynamic_cast<const comm::TorchFailure*>(&error);
  if (in_rank && trace) return in_rank->trace();
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch && !trace ? torch->what_without_backtrace() : error.what();
}

}  // namespace metroplex::apps
