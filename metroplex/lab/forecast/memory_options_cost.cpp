#include "forecast/memory_options.h"

#include <algorithm>

#include "config/derived.h"
#include "config/validate.h"
#include "price/machine.h"
#include "step/assemble.h"

namespace metroplex::forecast {
namespace {

// FLOPs that a device executes while it transfers one byte.
struct Rates {
  double memory, near, link, file;
};

// Rates of the machines "h100" and "cpu": only the order of the options depends on them.
Rates rates(bool gpu) {
  const price::Machine machine = price::find_machine(gpu ? "h100" : "cpu");
  const double flops = machine.peak_flops.at("bf16");
  return {flops / machine.memory_bytes_per_s, flops / machine.cluster.domains.front().link.bytes_per_s,
          flops / machine.cluster.domains.back().link.bytes_per_s, flops / machine.file_bytes_per_s};
}

// Bytes of a step: memory traffic, between tensor-parallel ranks, between other ranks and to the host, to a disk.
struct Traffic {
  double memory = 0, near = 0, link = 0, file = 0;
  double operations(const Rates& costs) const {
    return memory * costs.memory + near * costs.near + link * costs.link + file * costs.file;
  }
};

double element_bytes(const config::Config& config) {
  return static_cast<double>(c10::elementSize(step::scalar_type(config.precision.params_dtype)));
}

// Traffic of a rank in one step. Excludes traffic that is equal in all settings (docs/memory.md, costs).
Traffic traffic(const FitRequest& request, const RankFigures& figures, double saved_per_microbatch) {
  const config::Config& config = request.config;
  const config::Sharding sharding = config.parallel.sharding();
  const auto steps = static_cast<double>(max_microbatches(config, request.world_size));
  const auto params = static_cast<double>(figures.prediction.num_params);
  const double values = params * element_bytes(config);
  const bool fp32 = config.precision.main_grads_dtype == config::MainGradsDtype::fp32;
  const double gradients = fp32 ? 4 * params : values;
  Traffic out;
  out.memory = 3 * values * steps;  // a forward and both GEMMs of backward read the weights
  out.link = (sharding.transient_gradients() ? steps : 1) * gradients;
  out.link += (sharding.gathers_units() ? 2 * steps : 1) * (config.precision.fp8_param_gather ? params : values);
  if (config.optim.optimizer_cpu_offload)
    out.link +=
        (values + gradients) /
        (sharding.any() ? static_cast<double>(config::data_parallel_size(config.parallel, request.world_size)) : 1.0);
  const double moved = 2 * steps * saved_per_microbatch;
  if (config.memory.offload_activations == config::Offload::host) out.link += moved;
  if (config.memory.offload_activations == config::Offload::file) out.file += moved;
  // One more all-gather in backward, of each GEMM's input or of a layer's input.
  const double border =
      static_cast<double>(config.train.seq_length * config.train.micro_batch_size * config.model.hidden_size) *
      element_bytes(config);
  const double layers = static_cast<double>(config.model.num_layers) / static_cast<double>(config.parallel.pp());
  if (config.parallel.sequence_parallel) out.near += 2 * layers * border * steps;
  if (config.memory.distribute_saved_activations) out.near += layers * border * steps;
  return out;
}

// Approximate maximum number of microbatches in flight on a pipeline rank.
double in_flight(const config::Config& config, int world_size, int pp) {
  const int64_t all = max_microbatches(config, world_size);
  const bool overlaps = config.parallel.overlap_moe_expert_parallel_comm;  // one more per pair, and per rank
  if (config.parallel.pp() == 1) return static_cast<double>(std::min<int64_t>(all, overlaps ? 2 : 1));
  const int64_t stages = config.parallel.pp();
  const config::Schedule schedule = config::schedule(config.parallel);
  if (schedule == config::Schedule::gpipe) return static_cast<double>(all);
  if (schedule == config::Schedule::zb_h2) return static_cast<double>(std::min(all, 2 * stages - 1));
  if (schedule == config::Schedule::searched && config.parallel.pipeline_live_microbatches > 0)
    return static_cast<double>(std::min(all, config.parallel.pipeline_live_microbatches));
  if (config::splits_backward(schedule)) return static_cast<double>(std::min(all, stages));
  return static_cast<double>(std::min(all, (overlaps ? 2 : 1) * (stages - pp)));
}

double activation_bytes(const RankFigures& figures) {
  return static_cast<double>(figures.prediction.memory.use.activations);
}

}  // namespace

double added_cost(const FitRequest& now, const RankFigures& before, const FitRequest& then,
                  const RankFigures& after) {
  const double microbatches = in_flight(now.config, now.world_size, before.pp);
  const double less = std::max(0.0, activation_bytes(before) - activation_bytes(after)) / microbatches;
  const Traffic was = traffic(now, before, 0);
  Traffic is = traffic(then, after, less);
  const config::Memory &m = then.config.memory, &old = now.config.memory;
  const bool again =
      m.recompute_granularity != old.recompute_granularity || m.recompute_modules != old.recompute_modules;
  // Recomputed activations are written and read once more.
  if (again) is.memory += 2 * less * static_cast<double>(max_microbatches(then.config, then.world_size));
  const Rates costs = rates(now.domains.gpu);
  const double more = after.prediction.flops - before.prediction.flops + is.operations(costs) - was.operations(costs);
  return std::max(0.0, more / std::max(1.0, before.prediction.flops));
}

}  // namespace metroplex::forecast
