// The order that Megatron derives from its schedule table before capture (plan/graph_plan.h), and other recorded
// values of its captures. Sources: convert_schedule_table_to_order, TECudaGraphHelper.
#pragma once

#include <algorithm>
#include <vector>

#include "plan/megatron_order.h"

namespace metroplex::plan {

inline std::vector<int> table_to_order(int num_warmup, int num_chunks, const std::vector<Slot>& table) {
  std::vector<int> order;
  const int total = static_cast<int>(table.size());
  const auto forward = [&](int k) { order.push_back(table[static_cast<size_t>(k)].chunk + 1); };
  const auto backward = [&](int k) { order.push_back(table[static_cast<size_t>(k)].chunk - num_chunks); };
  for (int k = 0; k < num_warmup; ++k) forward(k);
  for (int k = num_warmup; k < total; ++k) {
    forward(k);
    backward(k - num_warmup);
  }
  for (int k = total - num_warmup; k < total; ++k) backward(k);
  return order;
}

// Maximum number of (microbatch, chunk) forwards whose backward has not run, over the order.
inline int peak_in_flight(const std::vector<int>& order) {
  int live = 0, peak = 0;
  for (const int entry : order) {
    live += entry > 0 ? 1 : -1;
    peak = std::max(peak, live);
  }
  return peak;
}

// Warm-up runs of a capture after `warmup_steps` eager steps; about ten runs precede a capture.
inline int graph_warmup_runs(int num_stages, int num_microbatches, int warmup_steps) {
  constexpr int kRuns = 10;
  const int runs_per_capture = num_stages == 1 ? 1 : num_microbatches;
  const int missing = kRuns - warmup_steps * num_microbatches;
  return missing <= 0 ? 1 : std::max(1, (missing + runs_per_capture - 1) / runs_per_capture);
}

}  // namespace metroplex::plan
