#include "plan/graph_exits.h"

namespace metroplex::plan {

using enum config::CudaGraphModule;

std::optional<GraphExit> graph_exit(const config::CudaGraphModules& modules, bool experts) {
  if (modules.empty() || modules.has(experts ? moe : mlp)) return GraphExit::layer_end;
  if (experts && modules.has(moe_preprocess)) return GraphExit::preprocess;
  if (experts && modules.has(moe_router)) return GraphExit::route;
  if (modules.has(attn)) return GraphExit::layer_end;  // half a layer: ends with hidden states, like a full layer
  return std::nullopt;
}

std::optional<GraphTensors> captured_tensors(const CapturedLayer& layer, const config::CudaGraphModules& modules) {
  const bool experts = layer.num_experts > 0;
  const auto exit = graph_exit(modules, experts);
  if (!exit) return std::nullopt;
  constexpr int64_t kLong = 8, kInt = 4;
  const int64_t h = layer.layer_bytes(), choices = layer.tokens * layer.topk;
  GraphTensors tensors{{h}, {h}};
  tensors.from_start = modules.empty() || modules.has(attn);
  tensors.to_end = *exit == GraphExit::layer_end && (modules.empty() || modules.has(experts ? moe : mlp));
  if (*exit == GraphExit::layer_end) return tensors;
  // Hidden states, input of the experts, probabilities.
  const int64_t normed = layer.tokens * layer.hidden_size * layer.element;
  tensors.results = {h, normed, choices * layer.probability};
  if (layer.shared_width > 0 && layer.shared_overlaps) {
    const int64_t rows = layer.shared_tokens > 0 ? layer.shared_tokens : layer.tokens;
    tensors.results.push_back(rows * layer.shared_width * layer.element);
    if (layer.shared_gate) tensors.results.push_back(layer.tokens * layer.probability);
  } else if (layer.shared_width > 0) {
    tensors.results.push_back(normed);
  }
  if (*exit == GraphExit::route) {
    tensors.integers = {choices * kLong};
    return tensors;
  }
  const int64_t columns = layer.num_experts + layer.slots;
  tensors.integers = {choices * layer.etp * kLong, choices * layer.etp * kLong, columns * kLong};
  if (layer.exchanges) tensors.integers.push_back(layer.etp * layer.ep * columns * kLong);
  if (layer.slots > 0) tensors.integers.push_back(layer.slots * kInt);
  return tensors;
}

int64_t megatron_store_bytes(const CapturedLayer& layer, GraphExit exit) {
  if (layer.num_experts == 0 || exit == GraphExit::layer_end) return 0;
  const int64_t h = layer.layer_bytes();
  return (exit == GraphExit::preprocess ? 2 : 1) * h + layer.tokens * layer.num_experts * (layer.probability + 1);
}

}  // namespace metroplex::plan
