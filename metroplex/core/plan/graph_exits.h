// Inputs and results of graphs of partially captured layers. A captured part of an MoE layer ends at one of two
// exits, after which code runs eagerly. `route` is after the router, `preprocess` after the dispatch plan of the
// rows. The results correspond to Megatron's MoECudaGraphTensorStore (moe/experts_layer.h), for the dispatchers
// alltoall and static_buffer.
#pragma once

#include <cstdint>
#include <optional>

#include "config/cuda_graph.h"
#include "plan/graph_plan.h"

namespace metroplex::plan {

struct CapturedLayer {
  int64_t tokens = 0;  // per microbatch and rank
  int64_t hidden_size = 0;
  int64_t element = 2;      // bytes of an activation
  int64_t residual = 0;     // bytes per element between layers (fp32_residual_connection); 0: same as element
  int64_t num_experts = 0;  // 0: a dense layer
  int64_t topk = 1;
  int64_t probability = 4;    // bytes of a router probability
  int64_t etp = 1, ep = 1;    // sizes of the groups that share the experts
  int64_t slots = 0;          // replica slots over all those ranks
  bool exchanges = true;      // rows are exchanged; with static_buffer true even on one rank
  int64_t shared_width = 0;   // columns of the shared expert's fc1 product on one rank; 0: no shared expert
  int64_t shared_tokens = 0;  // rows of that product; 0: `tokens` (more with sequence parallelism)
  bool shared_gate = false;
  bool shared_overlaps = false;  // model.moe_shared_expert_overlap

  int64_t layer_bytes() const { return tokens * hidden_size * (residual > 0 ? residual : element); }
};

enum class GraphExit { layer_end, route, preprocess };
// Returns where the captured part of a layer ends, or nothing if none of it is captured. Without modules the full
// layer is captured.
std::optional<GraphExit> graph_exit(const config::CudaGraphModules& modules, bool experts);

std::optional<GraphTensors> captured_tensors(const CapturedLayer& layer, const config::CudaGraphModules& modules);

// Returns the bytes of Megatron's store at an exit: hidden states, the residual after preprocess, probabilities and
// the routing map, dense over experts. It excludes the tensors that Megatron's dispatcher keeps; `preprocess` adds
// the row splits, a few integers per rank.
int64_t megatron_store_bytes(const CapturedLayer& layer, GraphExit exit);

}  // namespace metroplex::plan
