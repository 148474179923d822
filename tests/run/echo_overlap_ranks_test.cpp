// Whole steps have the same bits with and without model.moe_echo_expert_dispatch_overlap, which overlaps the transfer
// of replicas with other work.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/everyday.h"
#include "support/poisoned.h"
#include "run/replica_runs.h"

namespace metroplex::test::echo_overlap_ranks_test {
namespace {

using namespace replica_runs;

config::Config without_overlap(config::Config config) {
  config.model.moe_echo_expert_dispatch_overlap = false;
  return config;
}

config::Config of_type(config::Config config, const char* params, const char* main_grads = "fp32") {
  config.precision.params_dtype = params;
  config.precision.main_grads_dtype = main_grads;
  config.precision.loss_scale = config.precision.params_dtype == config::ParamsDtype::fp16 ? 256 : 0;
  return config;
}

void expect_same_bits_without_overlap(const config::Config& config, const ExpertGrid& grid, int64_t steps) {
  config::check(config, grid.layout.ranks());
  const ExpertRun want = train_steps(without_overlap(config), grid, steps);
  EXPECT_GT(want.replicas, 0);
  expect_same_bits(train_steps(config, grid, steps), want);
}

// Replica weights and gradients have the same bits with overlapped and synchronous transfers. Several microbatches
// per step, so that transfers in flight meet the next microbatch.
TEST(EchoOverlapRanks, OverlapChangesNoBit) {
  const NanFillGuard poisoned;
  struct Case {
    ExpertGrid grid;
    const char *type, *form;
    bool again;
  };
  std::vector<Case> cases;
  for (const ExpertGrid& grid :
       {ExpertGrid{{.dp = 2}, 1, 2, "no_shard"}, ExpertGrid{{.dp = 2}, 1, 2, "optim_grads"},
        ExpertGrid{{.dp = 4}, 1, 2, "optim_grads_params"}, ExpertGrid{{.dp = 4}, 1, 4, "optim"},
        ExpertGrid{{.tp = 2, .dp = 2, .sp = true}, 2, 2, "optim"},
        ExpertGrid{{.pp = 2, .vpp = 2, .dp = 2}, 1, 2, "optim_grads"},
        ExpertGrid{{.pp = 2, .dp = 4}, 1, 2, "optim_grads_params"}}) {
    for (const char* type : {"fp32", "bf16"}) {
      for (const char* form : {"", kFull, kExperts}) {
        for (const bool again : {false, true}) cases.push_back({grid, type, form, again});
      }
    }
  }
  for (const auto& [grid, type, form, again] : sample_cases(cases, 3)) {
    SCOPED_TRACE(base::concat(words(grid), ", ", type, again ? ", fetched again, " : ", ", form));
    config::Config config = of_type(experts(grid, {1}, form), type);
    config.model.moe_echo_recompute_expert_dispatch = again;
    expect_same_bits_without_overlap(config, grid, 2);
  }
}

// In fp16, or with bf16 main gradients, returned gradients are rounded in transit.
TEST(EchoOverlapRanks, OverlapChangesNoBitOfHalfGradients) {
  const NanFillGuard poisoned;
  for (const char* sharding : {"no_shard", "optim_grads_params"}) {
    const ExpertGrid grid{{.dp = 4}, 1, 2, sharding};
    for (const auto& [type, main_grads] : {std::pair("fp16", "fp32"), std::pair("bf16", "params")}) {
      SCOPED_TRACE(base::concat(words(grid), ", ", type, ", main gradients ", main_grads));
      expect_same_bits_without_overlap(of_type(experts(grid, {1}), type, main_grads), grid, 3);
    }
  }
}

// The graph contains the whole step, or the region of a layer that a scope selects; later steps replay it.
TEST(EchoOverlapRanks, OverlapChangesNoBitOfGraphs) {
  const NanFillGuard poisoned;
  using enum config::CudaGraphImpl;
  struct Case {
    ExpertGrid grid;
    config::CudaGraphImpl impl;
    std::vector<std::string> modules;
    const char* type;
    bool again;
  };
  std::vector<Case> cases;
  for (const char* type : {"fp32", "bf16"}) {
    for (const bool again : {false, true}) {
      for (const ExpertGrid& grid : kGrids) cases.push_back({grid, full_iteration, {}, type, again});
      // Grids that do not shard main gradients.
      for (const ExpertGrid& grid :
           {kGrids[0], kGrids[1], ExpertGrid{{.tp = 2, .dp = 2, .sp = true}, 2, 2, "optim"}}) {
        cases.push_back({grid, local, {}, type, again});
        cases.push_back({grid, transformer_engine, {"moe"}, type, again});
        cases.push_back({grid, local, {"moe_router", "moe_preprocess"}, type, again});
        cases.push_back({grid, local, {"attn"}, type, again});
      }
    }
  }
  for (const auto& [grid, impl, modules, type, again] : sample_cases(cases, 3)) {
    SCOPED_TRACE(base::concat(words(grid), ", ", type, ", ", config::text_of(impl), " of ",
                              modules.empty() ? std::string("all") : modules[0], again ? ", fetched again" : ""));
    config::Config config = of_type(experts(grid, {4 / grid.ep, config::EchoPlanner::exact, 1.0}), type);
    config.model.moe_echo_recompute_expert_dispatch = again;
    const ExpertRun eager = train_steps(without_overlap(config), grid, 4);
    config.train.cuda_graph_impl = impl;
    config.train.cuda_graph_modules = modules;
    config.train.cuda_graph_warmup_steps = 1;
    config::check(config, grid.layout.ranks());
    expect_same_bits(train_steps(config, grid, 4), eager);
    expect_same_bits(train_steps(without_overlap(config), grid, 4), eager);
  }
}

}  // namespace
}  // namespace metroplex::test::echo_overlap_ranks_test
