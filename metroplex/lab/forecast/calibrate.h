// Measures the machine at hand: small models train on one rank, and a recorder times every operator. Plain steps of
// the same models give the host time between operators.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "nn/microbatch.h"
#include "price/machine.h"

namespace metroplex::forecast {

struct CalibrateOptions {
  std::vector<config::ParamsDtype> dtypes{config::ParamsDtype::fp32, config::ParamsDtype::bf16};
  int steps = 5;  // of each model, and as many without a recorder
  std::function<void(const std::string& line)> progress;
};

// Single-rank models of the calibration: dense and MoE, in several sizes.
std::vector<config::Config> calibration_models(config::ParamsDtype dtype);

// Requires a CPU and one libtorch thread per rank. Machine::error is the largest error of a step among the models of
// the calibration. Machine::sources names the measurement.
price::Machine calibrate(const CalibrateOptions& options);

// Random tokens for a step of `config` on a rank: its first microbatch.
nn::Microbatch random_microbatch(const config::Config& config, int64_t rank);

}  // namespace metroplex::forecast
