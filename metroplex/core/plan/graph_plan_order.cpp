#include "plan/graph_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <map>
#include <utility>

#include "base/error.h"

namespace metroplex::plan {

GraphLayers alike_layers(const std::vector<int>& layers_of_chunk) {
  GraphLayers layers;
  for (const int count : layers_of_chunk) layers.signatures.emplace_back(static_cast<size_t>(count), 0);
  return layers;
}

std::vector<int> capture_order(const PipelineTable& table, int pp_rank) {
  std::vector<int> order;
  for (const Action& action : table.ranks.at(static_cast<size_t>(pp_rank))) {
    if (action.kind == ActionKind::forward) order.push_back(action.chunk + 1);
    if (action.kind == ActionKind::backward) order.push_back(-action.chunk - 1);
  }
  return order;
}

namespace {

class LayerWriter {
 public:
  LayerWriter(const std::vector<int>& layers_of_chunk, bool split) : layers_(layers_of_chunk), split_(split) {
    int first = 0;
    for (const int count : layers_) {
      first_.push_back(first);
      first += count;
    }
  }

  int num_layers(int entry) const { return layers_.at(static_cast<size_t>(std::abs(entry) - 1)); }

  void step(int entry, int i) {
    const int chunk = std::abs(entry) - 1;
    const int first = first_.at(static_cast<size_t>(chunk));
    if (entry > 0) {
      result.order.push_back(first + i + 1);
      result.chunk_and_layer.push_back(std::pair{chunk, i});
      return;
    }
    backward(-(first + num_layers(entry) - i));
  }

  void weight_gradient(int entry, int i) {
    if (!split_) return;
    const int first = first_.at(static_cast<size_t>(std::abs(entry) - 1));
    backward(-(first + num_layers(entry) - i) - 0.5);
  }

  LayerOrder result;

 private:
  void backward(double layer) {
    result.order.push_back(layer);
    result.chunk_and_layer.push_back(std::nullopt);
  }

  std::vector<int> layers_, first_;
  bool split_;
};

}  // namespace

LayerOrder overlap_layer_order(const std::vector<int>& order, const std::vector<int>& layers_of_chunk,
                               bool split_weight_gradient) {
  LayerWriter writer(layers_of_chunk, split_weight_gradient);
  for (size_t i = 0; i < order.size(); ++i) {
    const bool pair = order[i] < 0 && i + 1 < order.size() && order[i + 1] > 0;
    const int backward = order[i];
    const int forward = pair ? order[i + 1] : 0;
    const int steps = std::max(writer.num_layers(backward), pair ? writer.num_layers(forward) : 0);
    for (int layer = 0; layer < steps; ++layer) {
      if (pair && layer < writer.num_layers(forward)) writer.step(forward, layer);
      if (layer >= writer.num_layers(backward)) continue;
      writer.step(backward, layer);
      if (backward < 0 && layer + 1 < writer.num_layers(backward)) writer.weight_gradient(backward, layer);
    }
    // The last weight gradient of a backward follows the remaining layers of a longer forward.
    if (backward < 0 && writer.num_layers(backward) > 0)
      writer.weight_gradient(backward, writer.num_layers(backward) - 1);
    if (pair) ++i;
  }
  return std::move(writer.result);
}

MegatronSets megatron_sets(const std::vector<int>& order, const GraphLayers& layers, int num_microbatches) {
  MegatronSets sets;
  std::vector<int> first;  // index of each chunk's first forward
  int total = 0;
  for (const auto& chunk : layers.signatures) {
    first.push_back(total);
    total += static_cast<int>(chunk.size()) * num_microbatches;
  }
  sets.set_of_forward.resize(static_cast<size_t>(total), -1);
  std::map<int, std::deque<int>> returned;  // by signature
  std::vector<int> next_forward(first.size(), 0), next_backward(next_forward);
  for (const int entry : order) {
    const auto chunk = static_cast<size_t>(std::abs(entry) - 1);
    const std::vector<int>& signatures = layers.signatures.at(chunk);
    const int microbatch = (entry > 0 ? next_forward : next_backward)[chunk]++;
    MPX_ASSERT(microbatch < num_microbatches, "chunk ", chunk, " has more than ", num_microbatches, " microbatches");
    for (size_t layer = 0; layer < signatures.size(); ++layer) {
      const size_t index =
          static_cast<size_t>(first[chunk]) + static_cast<size_t>(microbatch) * signatures.size() + layer;
      int& set = sets.set_of_forward[index];
      std::deque<int>& free = returned[signatures[layer]];
      if (entry < 0) {
        MPX_ASSERT(set >= 0, "backward of chunk ", chunk, " microbatch ", microbatch, " before its forward");
        free.push_back(set);
      } else if (free.empty()) {
        set = sets.num_sets++;
      } else {
        set = free.front();
        free.pop_front();
      }
    }
  }
  return sets;
}

MegatronSets megatron_sets(const LayerOrder& order, const GraphLayers& layers, int num_microbatches) {
  GraphLayers single;
  for (const auto& chunk : layers.signatures) {
    for (const int signature : chunk) single.signatures.push_back({signature});
  }
  std::vector<int> whole;
  for (const double entry : order.order) {
    if (std::ceil(entry) == entry) whole.push_back(static_cast<int>(entry));
  }
  return megatron_sets(whole, single, num_microbatches);
}

}  // namespace metroplex::plan
