// Runs of the small mixture of experts with replicas of hot experts.
#pragma once

#include <string>

#include "run/expert_runs.h"

namespace metroplex::test::replica_runs {

inline const ExpertGrid kGrids[] = {{{.dp = 4}, 1, 4, "optim"},
                                    {{.pp = 2, .vpp = 2, .dp = 2}, 1, 2, "no_shard"},
                                    {{.dp = 4}, 1, 2, "optim_grads"},
                                    {{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 2, 2, "optim_grads_params"}};

// slots = 0: no replicas. Capacity factor (`room`) 0: alltoall.
struct Replicas {
  int64_t slots = 0;
  config::EchoPlanner planner = config::EchoPlanner::capfill;
  double room = 0;
  bool random = false;
};

inline config::Config experts(const ExpertGrid& grid, const Replicas& replicas, const std::string& yaml = "") {
  config::Config config = skewed_experts(grid, replicas.room, yaml);
  config::Model& m = config.model;
  m.moe_enable_echo = replicas.slots > 0;
  m.moe_num_echo_experts = replicas.slots * grid.ep;
  m.moe_echo_planner = replicas.planner;
  m.moe_echo_enable_random_offloading = replicas.random;
  return cut(config, grid.layout);
}

inline const char* const kFull =
    "memory: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}\n";
inline const char* const kExperts = "memory: {recompute_granularity: selective, recompute_modules: [moe]}\n";

}  // namespace metroplex::test::replica_runs
