// Compares a config on its layout with one rank: three steps in float64 (verify/verify.h).
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "comm/launch.h"
#include "config/validate.h"
#include "verify/verify.h"

namespace metroplex::run {

constexpr int64_t kSteps = 3, kVocab = 50;

// The pipeline schedules of a layout, as keys. Their number is odd, so sweeps that alternate the ZeRO stages run each
// schedule with each stage.
inline std::vector<const char*> list_schedules(int64_t pp, int64_t vpp) {
  if (pp > 1 && vpp == 1) return {"auto", "gpipe", "zb_h1", "zb_h2", "searched"};
  if (pp > 1 && vpp == 2) return {"auto", "interleaved", "zb_v", "dualpipe_v", "searched"};
  return {"auto"};
}
inline void set_schedule(config::Parallel& parallel, const char* name) {
  parallel.pipeline_schedule = config::Choice<config::Schedule>(name);
  parallel.overlap_p2p_comm =  // Megatron's rule for two stages
      parallel.virtual_pipeline_model_parallel_size > 1 && parallel.pipeline_schedule == config::Schedule::automatic;
}

inline verify::LayoutRun run_layout_on(const config::Config& config, int64_t ranks) {
  verify::LayoutRun result;
  const topology::RankGrid grid(static_cast<int>(ranks), config.parallel);
  comm::run_threads(static_cast<int>(ranks), grid, {}, [&](const comm::World& world) {
    verify::LayoutRun mine = verify::run_layout(config, world, kVocab, kSteps);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

inline config::Config for_ranks(const config::Config& base, int64_t ranks) {
  const config::Config config = verify::verification_config(base, kSteps);
  config::check(config, ranks);
  return config::resolved(config, ranks);
}

// `references`: single-rank runs so far, by global batch size; adds a missing one.
inline void expect_equals_single_rank(const config::Config& config, int64_t ranks,
                                      std::map<int64_t, verify::LayoutRun>& references) {
  const auto [reference, fresh] = references.try_emplace(config.train.global_batch_size);
  if (fresh) reference->second = run_layout_on(config::resolved(verify::single_rank_config(config), 1), 1);
  const verify::LayoutDifference difference = verify::compare_runs(run_layout_on(config, ranks), reference->second);
  EXPECT_LE(difference.loss, verify::kLossTolerance);
  EXPECT_LE(difference.grad_norm, verify::kGradNormTolerance);
  EXPECT_LE(difference.parameter, verify::kParameterTolerance) << "at " << difference.parameter_name;
}

}  // namespace metroplex::run
