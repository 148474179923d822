// Checks that the layout does not change the result. Runs a few steps on synthetic data in float64 on the configured
// layout and on a single rank. Reports the largest differences of losses, gradient norms and final parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/config.h"
#include "nn/microbatch.h"

namespace metroplex::verify {

struct LayoutRun {
  std::vector<double> losses, grad_norms;
  std::map<std::string, at::Tensor> params;  // unsharded, on rank 0; empty on other ranks
};

// Returns the float64 config for the comparison: same model, batch and document masks, synthetic tokens, no files.
// The optimizer runs from the first step at a constant rate.
config::Config verification_config(config::Config config, int64_t steps);
// Sets the batch size that train.decrease_batch_size_if_needed yields on `world_size` ranks, because a single rank
// would run the full one. Throws base::Error("plan") if no microbatch remains.
config::Config with_running_batch(config::Config config, int64_t world_size);
// Lists settings of `asked` that the comparison drops or changes: "key: its value (VALUE in the comparison)". Files,
// logs and the number of steps are not listed, because no layout can change them.
std::vector<std::string> dropped_settings(const config::Config& asked, const config::Config& compared);
// Lists settings whose result depends on the layout, by definition or through rounding: "key = value: reason;
// suggested fix".
std::vector<std::string> layout_dependent(const config::Config& config, int64_t world_size);
config::Config single_rank_config(config::Config config);

// Collective; uses synthetic_batches.
LayoutRun run_layout(const config::Config& config, const comm::World& world, int64_t vocab_size, int64_t steps);

// Returns this rank's microbatches of step `step`. Tokens depend only on the global sample number. With document
// masks, some tokens end a document. Loss masks have dtype `float_type`.
std::vector<nn::Microbatch> synthetic_batches(const config::Config& config, const comm::World& world,
                                              int64_t vocab_size, int64_t step, at::ScalarType float_type);

struct LayoutDifference {
  double loss = 0;       // relative
  double grad_norm = 0;  // relative
  double parameter = 0;  // absolute
  std::string parameter_name;
};
LayoutDifference compare_runs(const LayoutRun& run, const LayoutRun& reference);

// Float64 has a 53-bit mantissa. A loss sums some ten thousand products (1e-12 relative). The gradient norm sums
// over all parameters and has one digit less. A parameter moves by at most lr per step, while Adam normalizes
// gradients by their size (1e-10 absolute).
inline constexpr double kLossTolerance = 1e-12, kGradNormTolerance = 1e-11, kParameterTolerance = 1e-10;

}  // namespace metroplex::verify
