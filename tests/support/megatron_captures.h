// The +c/-c order that Megatron's graph capture walks, and the numbers that follow from it, as recorded. Sources:
// convert_schedule_table_to_order, get_overlap_moe_expert_parallel_comm_order, TECudaGraphHelper.
//
// Chunks in an order are 1-based: +c is a forward of chunk c-1, -c its backward; microbatches follow first in,
// first out.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/megatron_order.h"

namespace metroplex::plan {

// Order over single layers for the schedule in which the layers of a forward alternate with those of the backward
// before it. Layers are numbered 1.. over all chunks; x.5 is the weight gradient of layer x, when it is split off.
struct LayerOrder {
  std::vector<double> order;
  std::vector<std::optional<std::pair<int, int>>> chunk_and_layer;  // of forwards only, 0-based
};

// Static inputs of per-layer graphs: a backward hands the set of its forward back, the next forward takes the one
// that was handed back first. slot_of_forward[i] for i = (chunk * microbatches + microbatch) * layers + layer.
struct GraphBuffers {
  int num_sets = 0;
  std::vector<int> slot_of_forward;
};

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

// Most (microbatch, chunk) forwards whose backward has not run yet, over the order.
inline int peak_in_flight(const std::vector<int>& order) {
  int live = 0, peak = 0;
  for (const int entry : order) {
    live += entry > 0 ? 1 : -1;
    peak = std::max(peak, live);
  }
  return peak;
}

// Writes the entries of one chunk's forward or backward, layer by layer.
class LayerWriter {
 public:
  LayerWriter(const std::vector<int>& layers_per_chunk, bool split) : layers_(layers_per_chunk), split_(split) {
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

  // The weight gradient of layer i of a backward, counted from the last layer.
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

inline LayerOrder overlap_layer_order(const std::vector<int>& order, const std::vector<int>& num_layers_per_chunk,
                                      bool split_weight_gradient) {
  LayerWriter writer(num_layers_per_chunk, split_weight_gradient);
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
    // That of a backward's last layer waits for the rest of a longer forward.
    if (backward < 0 && writer.num_layers(backward) > 0)
      writer.weight_gradient(backward, writer.num_layers(backward) - 1);
    if (pair) ++i;
  }
  return std::move(writer.result);
}

inline GraphBuffers graph_buffers(const std::vector<int>& order, int num_chunks, int num_microbatches,
                                  int layers_per_chunk) {
  GraphBuffers buffers;
  buffers.slot_of_forward.resize(static_cast<size_t>(num_chunks * num_microbatches * layers_per_chunk), -1);
  std::deque<int> returned;
  std::vector<int> next_forward(static_cast<size_t>(num_chunks), 0), next_backward(next_forward);
  for (const int entry : order) {
    const int chunk = std::abs(entry) - 1;
    auto& next = entry > 0 ? next_forward : next_backward;
    const int microbatch = next.at(static_cast<size_t>(chunk))++;
    for (int layer = 0; layer < layers_per_chunk; ++layer) {
      const int index = (chunk * num_microbatches + microbatch) * layers_per_chunk + layer;
      int& slot = buffers.slot_of_forward.at(static_cast<size_t>(index));
      if (entry < 0) {
        MPX_ASSERT(slot >= 0, "backward of chunk ", chunk, " microbatch ", microbatch, " before its forward");
        returned.push_back(slot);
      } else if (returned.empty()) {
        slot = buffers.num_sets++;
      } else {
        slot = returned.front();
        returned.pop_front();
      }
    }
  }
  return buffers;
}

// Warm-up runs that a capture does after `warmup_steps` eager steps, so that about ten runs precede it.
inline int graph_warmup_runs(int num_stages, int num_microbatches, int warmup_steps) {
  constexpr int kRuns = 10;
  const int runs_per_capture = num_stages == 1 ? 1 : num_microbatches;
  const int missing = kRuns - warmup_steps * num_microbatches;
  return missing <= 0 ? 1 : std::max(1, (missing + runs_per_capture - 1) / runs_per_capture);
}

}  // namespace metroplex::plan
