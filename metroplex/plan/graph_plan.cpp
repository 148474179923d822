#include "plan/graph_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"

namespace metroplex::plan {

int GraphPlan::num_sets() const { return std::accumulate(sets_of_chunk.begin(), sets_of_chunk.end(), 0); }

namespace {

// Goes through the forwards of one chunk in order and gives each the set that has been free for longest.
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

}  // namespace

GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers,
                      const ReadsOfSets& of_sets) {
  MPX_CHECK(static_cast<int>(layers.signatures.size()) == table.num_chunks, "plan", "graphs: layers of ",
            layers.signatures.size(), " chunks for a table of ", table.num_chunks, "; give one list a chunk");
  GraphPlan plan;
  for (const auto& chunk : layers.signatures) plan.layers_of_chunk.push_back(static_cast<int>(chunk.size()));
  for (const std::vector<SetReads>& reads : of_sets) {
    assign_sets(reads, plan.set_of.emplace_back(), plan.sets_of_chunk.emplace_back(0));
  }
  add_captures(plan, table.ranks[static_cast<size_t>(pp_rank)]);
  return plan;
}

GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers) {
  return plan_graphs(table, pp_rank, layers, set_reads(table, pp_rank));
}

static int64_t sum_of(const std::vector<int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

GraphBytes graph_bytes(const GraphPlan& plan, const GraphLayers& layers, const std::map<int, GraphTensors>& tensors) {
  GraphBytes bytes;
  std::set<std::pair<size_t, int64_t>> gradients;
  for (size_t chunk = 0; chunk < layers.signatures.size(); ++chunk) {
    const std::vector<int>& of_chunk = layers.signatures[chunk];
    const int64_t sets = plan.sets_of_chunk[chunk];
    bool meets = false;
    for (const int signature : of_chunk) {
      const GraphTensors& layer = tensors.at(signature);
      if (!meets || !layer.from_start) bytes.inputs += sets * sum_of(layer.inputs);
      bytes.results += sets * (sum_of(layer.results) + sum_of(layer.integers));
      for (size_t i = 0; i < layer.results.size(); ++i) gradients.emplace(i, layer.results[i]);
      meets = layer.to_end;
    }
    if (!of_chunk.empty()) bytes.input_gradients += sets * sum_of(tensors.at(of_chunk.front()).inputs);
  }
  for (const auto& [place, size] : gradients) bytes.gradients += size;
  const bool backwards = std::any_of(plan.captures.begin(), plan.captures.end(), [](const GraphCapture& capture) {
    return capture.kind == ActionKind::backward;
  });
  if (!backwards) bytes.gradients = bytes.input_gradients = 0;
  return bytes;
}

}  // namespace metroplex::plan
