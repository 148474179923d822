#include "forecast/host_traffic.h"

#include <algorithm>

#include "forecast/count_microbatches.h"

namespace metroplex::forecast {
HostSeconds host_seconds(const price::Machine& machine, double bytes, double state, double forward_s,
                         double backward_s) {
  if (machine.host_bytes_per_s <= 0) return {};
  const double moved = bytes / machine.host_bytes_per_s;
  return {std::max(0.0, moved - forward_s) + std::max(0.0, moved - backward_s), 2 * state / machine.host_bytes_per_s};
}

void add_host_traffic(const RankRequest& request, const price::Machine& machine, const Fit& fit,
                      replay::StepTime& time) {
  const bool activations = request.config.memory.offload_activations == config::Offload::host;
  if (!activations && !request.config.optim.optimizer_cpu_offload) return;
  double bytes = 0;
  if (activations) {
    RankRequest without = request;
    without.config.memory.offload_activations = config::Offload::none;
    bytes = static_cast<double>(count_microbatches(request)) *
            (predict_rank(without).stored_bytes - fit.ranks[0].prediction.stored_bytes);
  }
  const replay::RankTimes& slowest = time.slowest();
  const HostSeconds added =
      host_seconds(machine, bytes, static_cast<double>(fit.worst_rank().prediction.memory.use.host), slowest.forward,
                   slowest.backward + slowest.weight);
  for (replay::RankTimes& rank : time.ranks) {
    rank.optimizer += added.optimizer;
    if (added.activations > 0) rank.exposed["host"] += added.activations;
  }
  time.seconds += added.activations + added.optimizer;
}

}  // namespace metroplex::forecast
