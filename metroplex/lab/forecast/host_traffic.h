// Transfers between files, host memory and the device, which the recorded operators lack: activations and optimizer
// state in host memory, and the batch.
#pragma once

#include "forecast/fit.h"
#include "price/machine.h"
#include "replay/step_time.h"

namespace metroplex::forecast {

// Adds the waits for memory.offload_activations = host (purpose "host"), optim.optimizer_cpu_offload (part of
// `optimizer`) and the next batch (purpose "loader") to every rank of `time`. Uses the first stage's activations and
// Machine::host_bytes_per_s. Transfers of activations overlap with the passes. The update on the host reads and
// writes its state once at the same rate. The next batch overlaps with the step. `request`: of the first rank.
void add_host_traffic(const RankRequest& request, const price::Machine& machine, const Fit& fit,
                      replay::StepTime& time);

// Seconds of both, for `bytes` of activations that a rank moves out in a step and `state` bytes of the optimizer.
struct HostSeconds {
  double activations = 0, optimizer = 0;
};
HostSeconds host_seconds(const price::Machine& machine, double bytes, double state, double forward_s,
                         double backward_s);

// Seconds to read the samples of one rank's step from files, four bytes a token, and to copy `bytes` to the device.
// A rate that the machine lacks counts as infinite.
double loader_seconds(const price::Machine& machine, const config::Config& config, int64_t microbatches,
                      double bytes);

}  // namespace metroplex::forecast
