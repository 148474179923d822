// Measures the machine at hand: small models train on one rank, and a recorder times every operator. Plain steps of
// the same models give the host time between operators.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "nn/microbatch.h"
#include "price/machine.h"
#include "replay/rank_trace.h"

namespace metroplex::forecast {

struct CalibrateOptions {
  std::vector<config::Config> models = {};  // of one rank; empty: calibration_models of fp32 and bf16
  // Threads that measure at the same time, since ranks share memory bandwidth and caches; 0: one per core.
  int ranks = 0;
  int steps = 3;  // of each model at each of two times, and as many without a recorder
  std::function<void(const std::string& line)> progress;
};

// The fastest of some steps of one rank: its operators with their CPU times, and the time of a step without a
// recorder. Other programs on the machine only make a step slower.
struct MeasuredStep {
  std::vector<replay::TraceOperation> operators;
  double step_s = std::numeric_limits<double>::infinity();
  double operators_s() const;
  void keep_faster(MeasuredStep other);  // of both parts, which may come from different steps
};
// The fastest of `steps` steps after a first one, on a single rank or on every rank of `world`.
MeasuredStep measure_step(const config::Config& config, int steps);
MeasuredStep measure_step(const config::Config& config, const comm::World& world, const nn::Microbatch& batch,
                          int steps);

// Host time of a step: what its operators do not take. Least squares with costs of at least 0, relative to the steps.
struct HostCosts {
  double library_call_s = 0, own_call_s = 0, byte_s = 0;
};
HostCosts fit_host_costs(const std::vector<MeasuredStep>& steps);

// Single-rank models of the calibration: dense and MoE, in several sizes.
std::vector<config::Config> calibration_models(config::ParamsDtype dtype);

// Requires a CPU and one libtorch thread per rank. Machine::error is the largest error of a step among the models of
// the calibration. Machine::sources names the measurement.
price::Machine calibrate(const CalibrateOptions& options);

// Random tokens for a step of `config` on a rank: its first microbatch.
nn::Microbatch random_microbatch(const config::Config& config, int64_t rank);

}  // namespace metroplex::forecast
