// Searches the layouts of a run: parallel sizes, schedule, sharding, recomputation and microbatch size.
//  1. Every combination that the rules allow gets an estimate of memory and time, from the trace of one layer of each
//     form (layer_forms.h).
//  2. In the order of the estimated time, memory is predicted exactly and the step is simulated. The search ends when
//     ten fit and the next estimate, less its error margin, exceeds the best time. Tests compare the best of small
//     clusters with exhaustive search; larger searches are not proven. Combinations that need too much memory are
//     tried again with offload, which never makes a step faster.
//  3. Other settings of the best results are changed one after another: order of the axes, gradient buckets, sequence
//     parallelism, token dispatcher, ECHO slots. Combinations of several such changes may be missed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forecast/run_plan.h"

namespace metroplex::forecast {

struct SearchLimits {
  int threads = 2;
  int results = 10;
  // Step 2 assumes that an estimate exceeds the simulated time by at most this fraction more than the estimates so
  // far. With 1, every combination is simulated.
  double margin = 0.02;
  // Memory is not predicted exactly if the estimate exceeds the device's by this factor.
  double memory_margin = 1.1;
  // Offload is skipped if it would have to save more than this multiple of the bytes that it saves in the estimate.
  double most_saved = 2;
  int64_t max_simulated = 48;  // ends the search before `results` layouts fit, once the best is known
  int refined = 2;             // number of results that step 3 changes
};

// The settings that the search varies.
struct Layout {
  int64_t tp = 1, cp = 1, pp = 1, vpp = 1, ep = 1, etp = 1, micro_batch = 1;
  config::Recompute recompute = config::Recompute::none;
  config::ShardingStrategy sharding = config::ShardingStrategy::no_shard;
  config::Schedule schedule = config::Schedule::automatic;
  bool offloads_activations = false, offloads_optimizer = false;  // to host memory
  std::vector<std::string> settings = {};                         // "parallel.order=tp-cp-ep-pp-dp"

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
  int64_t candidates = 0, refused = 0, too_large = 0, simulated = 0;  // too_large: by the estimate
  double seconds = 0;
};

// Every combination to consider for the model on `world_size` ranks, including some that the rules of the
// configuration refuse.
std::vector<Layout> list_layouts(const PlanRequest& request);

// The layout with more offload: of activations or of the optimizer, or of the optimizer too. Empty on a CPU.
std::vector<Layout> list_offloads(const PlanRequest& request, Layout layout);

// Values of a setting other than the layout's, each a list for Layout::settings.
using Alternatives = std::vector<std::vector<std::string>>;
std::vector<Alternatives> list_settings(const PlanRequest& request, const Layout& layout);

// request.run.config is not resolved; its parallel sizes are ignored. Throws base::Error("cost") if no combination
// fits.
LayoutSearch search_layouts(const PlanRequest& request, const SearchLimits& limits = {});

std::string to_text(const PlanRequest& request, const LayoutSearch& search);
std::string to_json(const LayoutSearch& search);
// The configuration of the first result, for metroplex train.
std::string best_yaml(const PlanRequest& request, const LayoutSearch& search);

}  // namespace metroplex::forecast
