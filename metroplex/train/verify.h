// Checks that a layout does not change the result: a few steps on synthetic data in float64, on the layout of a
// config and on one rank, and the largest differences of losses, gradient norms and final parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "nn/microbatch.h"

namespace metroplex::train {

struct LayoutRun {
  std::vector<double> losses, grad_norms;
  std::map<std::string, at::Tensor> params;  // whole, on rank 0; empty elsewhere
};

// The config in float64 for the comparison: same model, batch and document masks, made-up tokens, no files, optimizer
// from the first step on at a constant rate.
config::Config verification_config(config::Config config, int64_t steps);
// The batch size that runs where train.decrease_batch_size_if_needed makes it smaller on `world_size` ranks: one rank
// would take the whole of it. base::Error("plan") where not one microbatch is left.
config::Config with_running_batch(config::Config config, int64_t world_size);
// What of `asked` the comparison leaves out or changes: "key: its value (VALUE in the comparison)"; files, logs and
// the number of steps, which no layout can change, are not told.
std::vector<std::string> left_out(const config::Config& asked, const config::Config& compared);
// What gives another result on this layout than on one rank by what it means, or because rounding decides it: "key =
// value: why; way out".
std::vector<std::string> layout_dependent(const config::Config& config, int64_t world_size);
// The same on one rank.
config::Config one_rank_config(config::Config config);

// Collective, on synthetic_batches.
LayoutRun run_layout(const config::Config& config, const comm::World& world, int64_t vocab_size, int64_t steps);

// What this rank of `world` has of step `step`. Tokens are a function of the global sample number alone; with
// document masks some of them end a document. Losses are masked in `float_type`.
std::vector<nn::Microbatch> synthetic_batches(const config::Config& config, const comm::World& world,
                                              int64_t vocab_size, int64_t step, at::ScalarType float_type);

struct LayoutDifference {
  double loss = 0;       // relative
  double grad_norm = 0;  // relative
  double parameter = 0;  // absolute
  std::string parameter_name;
};
LayoutDifference compare_runs(const LayoutRun& run, const LayoutRun& reference);

// Float64 keeps 53 bits: a loss is a sum of some ten thousand products (1e-12 relative), and a parameter moves by at
// most lr a step while Adam divides gradients by their own size (1e-10 absolute).
// The gradient norm sums over all parameters: one digit less than the loss.
inline constexpr double kLossTolerance = 1e-12, kGradNormTolerance = 1e-11, kParameterTolerance = 1e-10;

}  // namespace metroplex::train
