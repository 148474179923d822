#include "plan/graph_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"

namespace metroplex::plan {

int GraphPlan::num_sets() const { return std::accumulate(sets_of_chunk.begin(), sets_of_chunk.end(), 0); }

namespace {

// Forwards of one chunk in order, each with the set that was free longest.
void assign_sets(const std::vector<SetReads>& reads, std::vector<int>& set_of, int& num_sets) {
  std::vector<size_t> by_forward(reads.size());
  std::iota(by_forward.begin(), by_forward.end(), size_t{0});
  std::sort(by_forward.begin(), by_forward.end(),
            [&](size_t a, size_t b) { return reads[a].written < reads[b].written; });
  std::set<std::pair<int64_t, size_t>> held;  // until, microbatch
  set_of.assign(reads.size(), -1);
  for (const size_t microbatch : by_forward) {
    const bool free = !held.empty() && held.begin()->first < reads[microbatch].written;
    set_of[microbatch] = free ? set_of[held.begin()->second] : num_sets++;
    if (free) held.erase(held.begin());
    held.emplace(reads[microbatch].until(), microbatch);
  }
}

void add_captures(GraphPlan& plan, const std::vector<Action>& actions) {
  std::vector<std::vector<int>> captured_by;  // [chunk][set]
  for (const int count : plan.sets_of_chunk) captured_by.emplace_back(static_cast<size_t>(count), -1);
  for (const Action& action : actions) {
    if (!is_compute(action.kind)) continue;
    const auto chunk = static_cast<size_t>(action.chunk);
    const int set = plan.set_of[chunk][static_cast<size_t>(action.microbatch)];
    int& owner = captured_by[chunk][static_cast<size_t>(set)];
    if (owner < 0) owner = action.microbatch;
    if (owner != action.microbatch) continue;
    const int count = plan.layers_of_chunk[chunk];
    for (int i = 0; i < count; ++i) {
      const int layer = action.kind == ActionKind::forward ? i : count - 1 - i;
      plan.captures.push_back({action.kind, action.chunk, layer, set, action.microbatch});
    }
  }
}

GraphPlan planned(const PipelineTable& table, int pp_rank, const GraphLayers& layers, bool sends) {
  MPX_CHECK(static_cast<int>(layers.signatures.size()) == table.num_chunks, "plan", "graphs: layers of ",
            layers.signatures.size(), " chunks for a table of ", table.num_chunks, "; give one list a chunk");
  GraphPlan plan;
  for (const auto& chunk : layers.signatures) plan.layers_of_chunk.push_back(static_cast<int>(chunk.size()));
  for (const std::vector<SetReads>& reads : set_reads(table, pp_rank, sends)) {
    assign_sets(reads, plan.set_of.emplace_back(), plan.sets_of_chunk.emplace_back(0));
  }
  add_captures(plan, table.ranks[static_cast<size_t>(pp_rank)]);
  return plan;
}

}  // namespace

GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers) {
  return planned(table, pp_rank, layers, true);
}

GraphPlan plan_graphs_without_sends(const PipelineTable& table, int pp_rank, const GraphLayers& layers) {
  return planned(table, pp_rank, layers, false);
}

GraphBytes graph_bytes(const GraphPlan& plan, const GraphLayers& layers, int64_t layer_bytes) {
  int64_t inputs = 0, gradients = 0;
  std::set<int> signatures;
  for (size_t chunk = 0; chunk < layers.signatures.size(); ++chunk) {
    const auto count = static_cast<int64_t>(layers.signatures[chunk].size());
    inputs += plan.sets_of_chunk[chunk] * count;
    if (count > 0) gradients += plan.sets_of_chunk[chunk];
    signatures.insert(layers.signatures[chunk].begin(), layers.signatures[chunk].end());
  }
  gradients += static_cast<int64_t>(signatures.size());
  const bool backwards = std::any_of(plan.captures.begin(), plan.captures.end(), [](const GraphCapture& capture) {
    return capture.kind == ActionKind::backward;
  });
  if (!backwards) gradients = 0;
  return {inputs * layer_bytes, inputs * layer_bytes, gradients * layer_bytes};
}

}  // namespace metroplex::plan
