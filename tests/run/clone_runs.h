// Runs of the small mixture of experts with replicas of hot experts.
#pragma once

#include <string>

#include "run/expert_runs.h"

namespace metroplex::test::clone_runs {

inline const ExpertGrid kGrids[] = {{{.dp = 4}, 1, 4, "optim"},
                                    {{.pp = 2, .vpp = 2, .dp = 2}, 1, 2, "no_shard"},
                                    {{.dp = 4}, 1, 2, "optim_grads"},
                                    {{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 2, 2, "optim_grads_params"}};

// slots = 0: no replicas. Capacity factor (`room`) 0: alltoall.
struct Clones {
  int64_t slots = 0;
  config::EchoPlanner planner = config::EchoPlanner::capfill;
  double room = 0;
  bool random = false;
};

inline config::Config experts(const ExpertGrid& grid, const Clones& clones, const std::string& yaml = "") {
  config::Config config = skewed_experts(grid, clones.room, yaml);
  config::Model& m = config.model;
  m.moe_enable_echo = clones.slots > 0;
  m.moe_num_echo_experts = clones.slots * grid.ep;
  m.moe_echo_planner = clones.planner;
  m.moe_echo_enable_random_offloading = clones.random;
  return cut(config, grid.layout);
}

inline const char* const kFull =
    "memory: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}\n";
inline const char* const kExperts = "memory: {recompute_granularity: selective, recompute_modules: [moe]}\n";

}  // namespace metroplex::test::clone_runs
