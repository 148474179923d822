#include "comm/launch.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/AutogradState.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "base/error.h"
#include "base/thread_pool.h"
#include "comm/backends/gloo.h"
#include "comm/backends/nccl.h"
#include "comm/backends/counting.h"
#include "comm/backends/threads.h"
#include "comm/report.h"
#include "device/device.h"

namespace metroplex::comm {
namespace {

void check_world(int world_size, const topology::RankGrid& grid) {
  MPX_CHECK(world_size == grid.world_size(), "comm", world_size, " ranks were started for a layout of ",
            grid.world_size(), " ranks; start tp*cp*pp*dp ranks");
}

c10::Device to_device(int gpu) {
  return gpu < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
}

GroupFactory rank_factory(const Hub& hub, int rank, const ThreadsOptions& options) {
  GroupFactory factory = share_communicators([&hub, rank, &options](const GroupSpec& spec) {
    std::shared_ptr<GroupBackend> backend = hub.backend(spec, rank);
    return options.observer ? options.observer->wrap(spec, rank, options, std::move(backend)) : backend;
  });
  return options.traffic ? count_traffic(std::move(factory), options.traffic) : factory;
}

// Keeps the first failure. A rank's own failure takes precedence over one received from another rank.
class FirstFailure {
 public:
  void add(const std::exception_ptr& failure) {
    const bool own = !is_peer_failure(failure);
    const std::lock_guard lock(mutex_);
    if (!failure_ || (own && !own_)) {
      failure_ = failure;
      own_ = own;
    }
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
  bool own_ = false;
};

// MKL detects the CPU on the first call to its matrix-multiply and vector-math functions. If two threads make that
// first call concurrently, they may get different kernels, so results differ in the last bits. One thread therefore
// makes the first call.
void warm_up_mkl() {
  static std::once_flag called;
  std::call_once(called, [] {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::ones({16, 16}, type);
      at::mm(x, x);
      at::log(x);
      at::exp(x);
    }
  });
}

// Process-wide setting. Without it, cuBLAS may accumulate partial sums of fp16 and bf16 matmuls in fp16 or bf16.
void use_fp32_reductions() {
  at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
  at::globalContext().setAllowFP16ReductionCuBLAS(/*allow_reduced_precision=*/false);
}

}  // namespace

// libtorch's pool waits forever for a thread that the system cannot start, so this tries to start them first.
static void check_threads(int count) {
  base::run_together(count, [](int) {});
}

void prepare_rank_thread(int num_threads, c10::Device device) {
  at::set_num_threads(num_threads);
  if (!device.is_cpu()) device::set_device(device.index());
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

void run_threads(int world_size, const topology::RankGrid& grid, const ThreadsOptions& options,
                 const RankBody& body) {
  check_world(world_size, grid);
  if (options.observer) options.observer->check(world_size, options);
  check_threads(world_size * options.threads_per_rank);
  use_fp32_reductions();
  const Hub hub(world_size, {options.timeout, options.rendezvous, rank_formatter(grid)});
  FirstFailure failure;
  const auto run_rank = [&](int rank) {
    try {
      prepare_rank_thread(options.threads_per_rank, to_device(options.gpu));
      const World world = make_world(rank, grid, rank_factory(hub, rank, options), to_device(options.gpu));
      if (options.observer) options.observer->start(rank);
      body(world);
      if (options.observer) options.observer->stop(rank);
      hub.leave(rank);
    } catch (...) {
      const std::exception_ptr exception = std::current_exception();
      failure.add(with_rank(exception, rank_formatter(grid)(rank)));
      hub.abort(rank, failure_cause(exception));
    }
  };
  warm_up_mkl();
  base::run_together(world_size, run_rank);
  failure.rethrow();
}

namespace {

void report_cause(const LaunchEnvironment& launch, const ProcessOptions& options,
                  const std::exception_ptr& exception) {
  if (launch.cause_fd < 0) return;
  const int code = options.exit_code ? options.exit_code(exception) : 1;
  const std::string text = encode(Report{!is_peer_failure(exception), code, failure_cause(exception)});
  [[maybe_unused]] const ssize_t written = ::write(launch.cause_fd, text.data(), text.size());
}

// Threads for the store server, the store client's timeout, the failure watch, the monitor, and gloo's device, event
// loop and worker.
constexpr int kConnectionThreads = 7;

GlooOptions store_options(const LaunchEnvironment& launch) {
  GlooOptions gloo;
  gloo.rank = launch.rank;
  gloo.world_size = launch.world_size;
  gloo.master_addr = launch.master_addr;
  gloo.master_port = launch.master_port;
  gloo.listen_fd = launch.listen_fd;
  gloo.agent_store = launch.agent_store;
  gloo.secret = launch.secret;
  gloo.attempt = launch.attempt;
  gloo.meet_first = launch.cause_fd < 0;  // built-in launcher ends the other ranks if one cannot start
  return gloo;
}

GlooOptions control_options(const LaunchEnvironment& launch, const ProcessOptions& options,
                            const RankFormatter& rank_name) {
  GlooOptions gloo = store_options(launch);
  gloo.full_mesh = options.backend == ProcessBackend::gloo;
  gloo.interface = options.interface.empty() ? launch.interface : options.interface;
  gloo.interface_source = options.interface.empty() ? "GLOO_SOCKET_IFNAME" : "run.network_interface";
  gloo.other_machines = launch.local_size < launch.world_size;
  gloo.timeout = options.timeout;
  gloo.rank_name = rank_name;
  if (options.on_stuck) {
    gloo.on_stuck = [launch, options, rank_name](const std::exception_ptr& failure) {
      report_cause(launch, options, failure);
      options.on_stuck(with_rank(failure, rank_name(launch.rank)));
    };
  }
  return gloo;
}

}  // namespace

void refuse_to_start(const LaunchEnvironment& launch, const std::string& cause) {
  const GlooOptions options = store_options(launch);
  if (!options.meet_first || launch.world_size == 1) return;
  prepare_c10d();
  publish_refusal(options, cause);
}

void run_process(const LaunchEnvironment& launch, const topology::RankGrid& grid, const ProcessOptions& options,
                 const RankBody& body) {
  const RankFormatter rank_name = rank_formatter(grid);
  bool reported = false;
  try {
    check_world(launch.world_size, grid);
    check_threads(options.threads_per_rank + kConnectionThreads);
    use_fp32_reductions();
    prepare_rank_thread(options.threads_per_rank, to_device(options.gpu));
    if (options.backend == ProcessBackend::nccl && !options.interface.empty())
      ::setenv("NCCL_SOCKET_IFNAME", ("=" + options.interface).c_str(),
               /*overwrite=*/0);  // =: match the exact name, not a prefix
    // NCCL rejects two ranks with one host id on one GPU, and uses neither P2P nor shared memory between host ids.
    if (options.shares_gpu) ::setenv("NCCL_HOSTID", base::concat("metroplex-", launch.rank).c_str(), /*overwrite=*/1);
    prepare_c10d();
    GlooContext control(control_options(launch, options, rank_name));
    // Outlives the failure report below, because destroying communicators may block.
    std::shared_ptr<NcclContext> nccl;
    try {
      if (options.backend == ProcessBackend::nccl)
        nccl =
            options.make_nccl ? options.make_nccl(control) : make_nccl_context(control, options.gpu, options.timeout);
      GroupFactory factory = share_communicators(
          [&](const GroupSpec& spec) { return nccl ? nccl->backend(spec) : control.backend(spec); });
      if (options.traffic) factory = count_traffic(std::move(factory), options.traffic);
      const auto end_run = [&](const std::exception_ptr& failure) {
        control.fail(failure);
        report_cause(launch, options, failure);
      };
      body(make_world(launch.rank, grid, factory, to_device(options.gpu), end_run));
      if (nccl) nccl->shutdown();
    } catch (...) {
      control.fail(std::current_exception());
      report_cause(launch, options, std::current_exception());
      reported = true;
      throw;
    }
  } catch (...) {
    const std::exception_ptr exception = std::current_exception();
    if (!reported) report_cause(launch, options, exception);
    std::rethrow_exception(
        with_rank(exception, launch.rank < grid.world_size() ? rank_name(launch.rank) : format_rank(launch.rank)));
  }
}

}  // namespace metroplex::comm
