#include "config/device_choice.h"

#include "base/error.h"

namespace metroplex::config {
namespace {

bool each_has_a_gpu(const Machine& m) {
  const bool may_be_bound = m.launcher == "Slurm" || m.launcher == "Open MPI";
  return m.num_gpus >= m.local_ranks || (m.num_gpus > 0 && m.shares_gpus) || (may_be_bound && m.num_gpus == 1);
}

bool uses_gpus(const Run& run, const Machine& m) {
  if (run.device == Device::cuda || run.backend == Backend::nccl) return true;
  if (run.device == Device::cpu || run.backend == Backend::gloo) return false;
  return m.num_gpus > 0 && (run.backend == Backend::threads ? m.local_ranks == 1 : each_has_a_gpu(m));
}

Backend choose_backend(const Run& run, const Machine& m, bool gpus) {
  if (run.backend != Backend::automatic) return run.backend;
  const bool alone = m.launcher.empty() && m.local_ranks == 1;
  if (gpus) return alone ? Backend::threads : Backend::nccl;
  return m.launcher.empty() ? Backend::threads : Backend::gloo;
}

}  // namespace

DeviceChoice choose_device(const Run& run, const Machine& m) {
  const bool gpus = uses_gpus(run, m);
  DeviceChoice choice{choose_backend(run, m, gpus), -1};
  if (!gpus) return choice;
  const std::string asked = run.device == Device::cuda ? "run.device = cuda" : "run.backend = nccl";
  MPX_CHECK(m.num_gpus > 0, "config", asked, " computes on GPUs, but ", m.no_gpu,
            "; use run.device = cpu with run.backend = ", m.launcher.empty() ? "threads" : "gloo");
  const bool shared = choice.backend == Backend::threads;
  MPX_CHECK(shared || each_has_a_gpu(m), "config", asked, " needs one GPU for each of the ", m.local_ranks,
            " ranks of this machine, but there are ", m.num_gpus, "; start at most ", m.num_gpus,
            ", or put all ranks on one GPU with run.device = cuda and run.backend = threads");
  choice.gpu = shared ? 0 : m.local_rank % m.num_gpus;
  return choice;
}

}  // namespace metroplex::config
