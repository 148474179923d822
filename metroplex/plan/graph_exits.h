// What graphs of parts of layers take and hand on. Captured parts of a layer of experts end at one of two exits, from
// which eager code goes on: `route`, behind the router, and `preprocess`, behind the plan of where rows go. Their
// results are Megatron's MoECudaGraphTensorStore in our values (moe/experts_layer.h), for the dispatchers alltoall
// and static_buffer.
#pragma once

#include <cstdint>
#include <optional>

#include "config/cuda_graph.h"
#include "plan/graph_plan.h"

namespace metroplex::plan {

struct CapturedLayer {
  int64_t tokens = 0;  // of a microbatch, on one rank
  int64_t hidden_size = 0;
  int64_t element = 2;      // bytes of an activation
  int64_t residual = 0;     // of what passes between layers (fp32_residual_connection); 0: the same
  int64_t num_experts = 0;  // 0: a dense layer
  int64_t topk = 1;
  int64_t probability = 4;    // bytes of a router's probability
  int64_t etp = 1, ep = 1;    // ranks that share the experts
  int64_t slots = 0;          // for clones, of all those ranks
  bool exchanges = true;      // rows travel; of one rank, they do with static_buffer
  int64_t shared_width = 0;   // columns of fc1's product on one rank, of a shared expert; 0: there is none
  int64_t shared_tokens = 0;  // rows of that product; 0: as many as `tokens` (more with sequence parallelism)
  bool shared_gate = false;
  bool shared_overlaps = false;  // model.moe_shared_expert_overlap

  int64_t layer_bytes() const { return tokens * hidden_size * (residual > 0 ? residual : element); }
};

enum class GraphExit { layer_end, route, preprocess };
// Where the captured part of a layer ends; nothing: none of it is captured. No modules: all of the layer is.
std::optional<GraphExit> graph_exit(const config::CudaGraphModules& modules, bool experts);

// Nothing where nothing is captured.
std::optional<GraphTensors> captured_tensors(const CapturedLayer& layer, const config::CudaGraphModules& modules);

// Of Megatron's store behind an exit, without what its dispatcher keeps (`preprocess` adds the splits of rows, some
// integers a rank): hidden states, the residual behind preprocess, probabilities and routing map, dense over experts.
int64_t megatron_store_bytes(const CapturedLayer& layer, GraphExit exit);

}  // namespace metroplex::plan
