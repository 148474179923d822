#include "forecast/host_traffic.h"

#include <algorithm>

#include "forecast/count_microbatches.h"

namespace metroplex::forecast {
namespace {

void add_to_all_ranks(replay::StepTime& time, const char* purpose, double seconds) {
  if (seconds <= 0) return;
  for (replay::RankTimes& rank : time.ranks) rank.exposed[purpose] += seconds;
  time.seconds += seconds;
}

void add_offload(const RankRequest& request, const price::Machine& machine, const Fit& fit, replay::StepTime& time) {
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
  for (replay::RankTimes& rank : time.ranks) rank.optimizer += added.optimizer;
  time.seconds += added.optimizer;
  add_to_all_ranks(time, "host", added.activations);
}

void add_loader(const RankRequest& request, const price::Machine& machine, const Fit& fit, replay::StepTime& time) {
  const double seconds = loader_seconds(machine, request.config, count_microbatches(request),
                                        static_cast<double>(fit.ranks[0].prediction.memory.batches));
  const bool events = !time.timeline.ranks.empty() && !time.timeline.ranks[0].empty();
  if (events && seconds > 0) time.events.push_back({0, "loader", "next batch", 0, seconds});
  add_to_all_ranks(time, "loader", seconds - time.seconds);
}

}  // namespace

HostSeconds host_seconds(const price::Machine& machine, double bytes, double state, double forward_s,
                         double backward_s) {
  if (machine.host_bytes_per_s <= 0) return {};
  const double moved = bytes / machine.host_bytes_per_s;
  return {std::max(0.0, moved - forward_s) + std::max(0.0, moved - backward_s), 2 * state / machine.host_bytes_per_s};
}

double loader_seconds(const price::Machine& machine, const config::Config& config, int64_t microbatches,
                      double bytes) {
  constexpr double kTokenBytes = 4;
  const auto tokens = static_cast<double>(microbatches * config.train.micro_batch_size * config.train.seq_length);
  const bool reads = !config.data.mock_data && machine.file_bytes_per_s > 0;
  return (reads ? kTokenBytes * tokens / machine.file_bytes_per_s : 0) +
         (machine.host_bytes_per_s > 0 ? bytes / machine.host_bytes_per_s : 0);
}

void add_host_traffic(const RankRequest& request, const price::Machine& machine, const Fit& fit,
                      replay::StepTime& time) {
  add_offload(request, machine, fit, time);
  add_loader(request, machine, fit, time);
}

}  // namespace metroplex::forecast
