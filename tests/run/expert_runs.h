// Runs of the small mixture of experts on a grid, and comparisons of two runs.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "moe/load_meter.h"
#include "run/legs.h"
#include "run/small_experts.h"

namespace metroplex::test {

struct ExpertGrid {
  TestLayout layout;
  int64_t etp = 1, ep = 1;
  const char* sharding = "no_shard";
};

inline std::string words(const ExpertGrid& g) {
  return base::concat("tp ", g.layout.tp, " pp ", g.layout.pp, " dp ", g.layout.dp, " etp ", g.etp, " ep ", g.ep, " ",
                      g.sharding);
}

// Skewed routing, so that buffers for the even load overflow in every step. factor: of static buffers; 0: alltoall.
// Returns an unresolved config.
inline config::Config skewed_experts(const ExpertGrid& grid, double factor, const std::string& yaml = "") {
  config::Config config = small_experts(", moe_shared_expert_overlap: true, moe_router_force_skew: 1.5", yaml);
  config.train.log_experts_interval = 1;
  config.parallel.expert_tensor_parallel_size = grid.etp;
  config.parallel.expert_model_parallel_size = grid.ep;
  config.parallel.data_parallel_sharding_strategy = grid.sharding;
  config.model.moe_token_dispatcher_type = factor > 0 ? "static_buffer" : "alltoall";
  config.model.moe_expert_rank_capacity_factor = factor;
  return config;
}

struct ExpertRun {
  std::vector<double> losses, norms, evaluated;
  std::vector<std::string> repeated;  // why a step ran again; empty: it did not
  std::vector<at::Tensor> loads;
  double replicas = 0;  // replicas planned by rank 0
  State state;

  int64_t times_repeated() const {
    return std::count_if(repeated.begin(), repeated.end(), [](const std::string& why) { return !why.empty(); });
  }
};

// `config` is resolved for the grid. Evaluates after every second step.
inline ExpertRun train_steps(const config::Config& config, const ExpertGrid& grid, int64_t steps) {
  ExpertRun ran;
  run_sharded(config, grid.layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    ExpertRun mine;
    for (int64_t step = 0; step < steps; ++step) {
      const step::StepOutcome outcome = step_at(*assembly, step);
      EXPECT_TRUE(outcome.updated && !outcome.overflow);
      mine.losses.push_back(outcome.loss);
      mine.norms.push_back(outcome.grad_norm);
      mine.repeated.push_back(outcome.repeated);
      for (const auto& [layer, load] : assembly->model.experts->meter->layers()) {
        mine.loads.push_back(load.counts.clone());
        if (load.replicas.defined()) mine.replicas += load.replicas[moe::LoadMeter::kReplicas].item<double>();
      }
      auto batches = make_batches(*assembly, step + 100);
      for (nn::Microbatch& batch : batches) batch.training = false;
      if (step % 2 == 1) mine.evaluated.push_back(step::evaluate_step(*assembly, batches).mean());
    }
    mine.state = whole_state(*assembly);
    if (world.rank() == 0) ran = std::move(mine);
  });
  return ran;
}

inline void expect_same_bits(const ExpertRun& got, const ExpertRun& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluated, want.evaluated);
  ASSERT_EQ(got.loads.size(), want.loads.size());
  for (size_t i = 0; i < want.loads.size(); ++i) EXPECT_TRUE(got.loads[i].equal(want.loads[i])) << i;
  ASSERT_EQ(got.state.size(), want.state.size());
  for (const auto& [name, values] : want.state) EXPECT_TRUE(at::equal(got.state.at(name), values)) << name;
}

}  // namespace metroplex::test
