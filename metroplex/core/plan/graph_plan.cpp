#include "plan/graph_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"

namespace metroplex::plan {

std::vector<std::vector<size_t>> GraphPlan::chunks_of_instance() const {
  std::vector<std::vector<size_t>> chunks(static_cast<size_t>(num_instances));
  for (size_t chunk = 0; chunk < instance_of.size(); ++chunk) {
    for (const int instance : instance_of[chunk]) {
      if (instance < 0) continue;
      std::vector<size_t>& list = chunks[static_cast<size_t>(instance)];
      if (list.empty() || list.back() != chunk) list.push_back(chunk);
    }
  }
  return chunks;
}

namespace {

struct Pass {
  size_t chunk, microbatch;
  int64_t written, until;
};

std::vector<Pass> passes_by_forward(const ReadsOfPasses& reads, const std::vector<int>& layers_of_chunk) {
  std::vector<Pass> passes;
  for (size_t chunk = 0; chunk < reads.size(); ++chunk) {
    for (size_t m = 0; m < reads[chunk].size() && layers_of_chunk[chunk] > 0; ++m)
      passes.push_back({chunk, m, reads[chunk][m].written, reads[chunk][m].until()});
  }
  std::sort(passes.begin(), passes.end(), [](const Pass& a, const Pass& b) { return a.written < b.written; });
  return passes;
}

class InstancePool {
 public:
  // mixes: chunks with different numbers of layers may share instances.
  InstancePool(const std::vector<int>& layers_of_chunk, bool mixes) : layers_(layers_of_chunk), mixes_(mixes) {}

  // Returns a free instance, else a new one. It prefers an instance in which the chunk has graphs, then one of a
  // chunk with as many layers. This keeps graphs few and pools small. Ties go to the instance that has been free
  // longest.
  int take(const Pass& pass) {
    auto best = held_.end();
    int best_rank = 0;
    for (auto candidate = held_.begin(); candidate != held_.end() && candidate->first < pass.written; ++candidate) {
      const int rank = preference(candidate->second, pass.chunk);
      if (rank > best_rank) best = candidate, best_rank = rank;
    }
    const int instance = best == held_.end() ? static_cast<int>(chunks_.size()) : best->second;
    if (best != held_.end()) held_.erase(best);
    else chunks_.emplace_back();
    chunks_[static_cast<size_t>(instance)].insert(pass.chunk);
    held_.emplace(pass.until, instance);
    return instance;
  }
  // Returns the total layers over instances. Each instance has memory for its largest chunk.
  int64_t layers() const {
    int64_t sum = 0;
    for (const std::set<size_t>& chunks : chunks_) {
      int most = 0;
      for (const size_t chunk : chunks) most = std::max(most, layers_[chunk]);
      sum += most;
    }
    return sum;
  }
  int size() const { return static_cast<int>(chunks_.size()); }

 private:
  // Returns 0 if the chunk must not use the instance.
  int preference(int instance, size_t chunk) const {
    const std::set<size_t>& chunks = chunks_[static_cast<size_t>(instance)];
    if (chunks.contains(chunk)) return 3;
    const bool alike =
        std::any_of(chunks.begin(), chunks.end(), [&](size_t other) { return layers_[other] == layers_[chunk]; });
    return alike ? 2 : mixes_ ? 1 : 0;
  }

  const std::vector<int>& layers_;
  bool mixes_;
  std::set<std::pair<int64_t, int>> held_;  // time of the last read, instance
  std::vector<std::set<size_t>> chunks_;    // chunks with graphs in each instance
};

int64_t assign_instances(GraphPlan& plan, const std::vector<Pass>& passes, bool mixes) {
  InstancePool instances(plan.layers_of_chunk, mixes);
  for (const Pass& pass : passes) plan.instance_of[pass.chunk][pass.microbatch] = instances.take(pass);
  plan.num_instances = instances.size();
  return instances.layers();
}

void add_captures(GraphPlan& plan, const std::vector<Action>& actions) {
  std::map<std::pair<int, int>, int> captured_by;
  for (const Action& action : actions) {
    if (!is_compute(action.kind)) continue;
    const auto chunk = static_cast<size_t>(action.chunk);
    const int instance = plan.instance_of[chunk][static_cast<size_t>(action.microbatch)];
    if (instance < 0) continue;
    const int owner = captured_by.try_emplace({action.chunk, instance}, action.microbatch).first->second;
    if (owner != action.microbatch) continue;
    const int count = plan.layers_of_chunk[chunk];
    for (int i = 0; i < count; ++i) {
      const int layer = action.kind == ActionKind::forward ? i : count - 1 - i;
      plan.captures.push_back({action.kind, action.chunk, layer, instance, action.microbatch});
    }
  }
}

}  // namespace

GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers,
                      const ReadsOfPasses& reads) {
  MPX_CHECK(static_cast<int>(layers.signatures.size()) == table.num_chunks, "plan", "graphs: layers of ",
            layers.signatures.size(), " chunks for a table of ", table.num_chunks, "; give one list a chunk");
  GraphPlan plan;
  for (const auto& chunk : layers.signatures) plan.layers_of_chunk.push_back(static_cast<int>(chunk.size()));
  for (const std::vector<PassReads>& chunk : reads) plan.instance_of.emplace_back(chunk.size(), -1);
  const std::vector<Pass> passes = passes_by_forward(reads, plan.layers_of_chunk);
  GraphPlan apart = plan;
  const int64_t mixed = assign_instances(plan, passes, true);
  if (assign_instances(apart, passes, false) < mixed) plan = std::move(apart);
  add_captures(plan, table.ranks[static_cast<size_t>(pp_rank)]);
  return plan;
}

GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers) {
  return plan_graphs(table, pp_rank, layers, pass_reads(table, pp_rank));
}

static int64_t sum_bytes(const std::vector<int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

namespace {

struct ChunkBytes {
  std::map<int64_t, int64_t> inputs;  // number of buffers by size
  int64_t results = 0, input_gradients = 0;
};

ChunkBytes chunk_bytes(const std::vector<int>& signatures, const std::map<int, GraphTensors>& tensors) {
  ChunkBytes bytes;
  bool meets = false;
  for (const int signature : signatures) {
    const GraphTensors& layer = tensors.at(signature);
    for (const int64_t size : layer.inputs) bytes.inputs[size] += meets && layer.from_start ? 0 : 1;
    bytes.results += sum_bytes(layer.results) + sum_bytes(layer.integers);
    meets = layer.to_end;
  }
  if (!signatures.empty()) bytes.input_gradients = sum_bytes(tensors.at(signatures.front()).inputs);
  return bytes;
}

}  // namespace

GraphBytes graph_bytes(const GraphPlan& plan, const GraphLayers& layers, const std::map<int, GraphTensors>& tensors) {
  GraphBytes bytes;
  std::vector<ChunkBytes> of_chunk;
  std::set<std::pair<size_t, int64_t>> gradients;
  for (const std::vector<int>& signatures : layers.signatures) {
    of_chunk.push_back(chunk_bytes(signatures, tensors));
    for (const int signature : signatures) {
      const std::vector<int64_t>& results = tensors.at(signature).results;
      for (size_t i = 0; i < results.size(); ++i) gradients.emplace(i, results[i]);
    }
  }
  for (const std::vector<size_t>& chunks : plan.chunks_of_instance()) {
    ChunkBytes most;
    for (const size_t chunk : chunks) {
      for (const auto& [size, count] : of_chunk[chunk].inputs) most.inputs[size] = std::max(most.inputs[size], count);
      most.results = std::max(most.results, of_chunk[chunk].results);
      most.input_gradients = std::max(most.input_gradients, of_chunk[chunk].input_gradients);
    }
    for (const auto& [size, count] : most.inputs) bytes.inputs += size * count;
    bytes.results += most.results;
    bytes.input_gradients += most.input_gradients;
  }
  for (const auto& [index, size] : gradients) bytes.gradients += size;
  const bool backwards = std::any_of(plan.captures.begin(), plan.captures.end(), [](const GraphCapture& capture) {
    return capture.kind == ActionKind::backward;
  });
  if (!backwards) bytes.gradients = bytes.input_gradients = 0;
  return bytes;
}

}  // namespace metroplex::plan
