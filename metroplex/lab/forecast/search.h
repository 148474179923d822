// Searches the layouts of a run: parallel sizes, schedule, sharding, recomputation and microbatch size. Three steps:
//  1. Every combination that the rules allow gets an estimate of memory and time, from traces of one and two layers.
//  2. Combinations whose estimated memory is far above the device's are dropped; the others are sorted by time.
//  3. In this order, memory is predicted exactly and the step is simulated. The search ends when ten fit and the next
//     estimate, less its error margin, exceeds the best time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forecast/run_plan.h"

namespace metroplex::forecast {

struct SearchLimits {
  int threads = 2;
  int results = 10;
  // Largest relative error of an estimate that step 3 assumes: with 1, every combination is simulated.
  double margin = 0.1;
  int64_t max_simulated = 48;  // ends the search before `results` layouts fit, once the best is known
};

// The settings that the search varies.
struct Layout {
  int64_t tp = 1, cp = 1, pp = 1, vpp = 1, ep = 1, etp = 1, micro_batch = 1;
  config::Recompute recompute = config::Recompute::none;
  config::ShardingStrategy sharding = config::ShardingStrategy::no_shard;
  config::Schedule schedule = config::Schedule::automatic;

  int64_t dp(int64_t world) const { return world / (tp * cp * pp); }
  config::Config apply(config::Config config) const;
  std::string to_string(int64_t world) const;  // "tp 8, pp 4, vpp 2, dp 16, micro batch 1, optim, full recompute"
};

struct SearchResult {
  Layout layout;
  RunPlan plan;
  double estimate_s = 0;
  std::string loses_by;  // the part of the step that is longest compared with the first result; "" for the first
};

struct LayoutSearch {
  std::vector<SearchResult> results;  // by time
  std::vector<SearchResult> pareto;   // those that no other beats in both memory and time, by memory
  int64_t candidates = 0, refused = 0, too_large = 0, simulated = 0;
  double seconds = 0;
};

// Every combination to consider for the model on `world_size` ranks, including some that the rules of the
// configuration refuse.
std::vector<Layout> list_layouts(const PlanRequest& request);

// request.run.config is not resolved; its parallel sizes are ignored. Throws base::Error("cost") if no combination
// fits.
LayoutSearch search_layouts(const PlanRequest& request, const SearchLimits& limits = {});

std::string to_text(const PlanRequest& request, const LayoutSearch& search);
std::string to_json(const LayoutSearch& search);
// The configuration of the first result, for metroplex train.
std::string best_yaml(const PlanRequest& request, const LayoutSearch& search);

}  // namespace metroplex::forecast
