// Rules for device and backend that need no machine (device_choice.h has the others).
#include "config/rules.h"

namespace metroplex::config {

void check_device(Rules& rules) {
  const Run& run = rules.config.run;
  static constexpr const char* kDevice = "run.device";
  rules.require(run.device != Device::cpu || run.backend != Backend::nccl, kDevice, run.device,
                "excludes run.backend = nccl, which moves tensors between GPUs",
                "use cuda, or run.backend = gloo or threads");
  rules.require(run.device != Device::cuda || run.backend != Backend::gloo, kDevice, run.device,
                "excludes run.backend = gloo, which moves tensors of host memory",
                "use run.backend = nccl (one GPU a rank) or threads (all ranks on one GPU)");
}

}  // namespace metroplex::config
