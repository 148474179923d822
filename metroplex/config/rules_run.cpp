// Rules about where ranks compute and how they talk, as far as no machine is needed to tell (device_choice.h has the
// rest).
#include "config/rules.h"

namespace metroplex::config {

void check_device(Rules& rules) {
  const Run& r = rules.config.run;
  static constexpr const char* kDevice = "run.device";
  rules.require(r.device != "cpu" || r.backend != "nccl", kDevice, r.device,
                "excludes run.backend = nccl, which moves tensors between GPUs",
                "use cuda, or run.backend = gloo or threads");
  rules.require(r.device != "cuda" || r.backend != "gloo", kDevice, r.device,
                "excludes run.backend = gloo, which moves tensors of host memory",
                "use run.backend = nccl (one GPU a rank) or threads (all ranks on one GPU)");
}

}  // namespace metroplex::config
