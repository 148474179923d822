// The order in which Megatron captures the graphs of a pipeline rank, and how many static input sets it needs: the
// numbers that ours (graph_plan.h) are compared with. Sources: TECudaGraphHelper,
// get_overlap_moe_expert_parallel_comm_order.
//
// Chunks in an order are 1-based: +c is a forward of chunk c-1, -c its backward; microbatches follow first in, first
// out.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "plan/pipeline_table.h"

namespace metroplex::plan {

// The captured layers of a rank's chunks. Layers whose inputs have the same shapes and dtypes have the same
// signature, an arbitrary integer.
struct GraphLayers {
  std::vector<std::vector<int>> signatures;  // [chunk][layer]
};
// As many layers in each chunk as given, all with the same signature.
GraphLayers alike_layers(const std::vector<int>& layers_of_chunk);

// The forwards and backwards of a rank's row.
std::vector<int> order_of(const PipelineTable& table, int pp_rank);

// Order over single layers for the schedule in which the layers of a forward alternate with those of the backward
// before it. Layers are numbered 1.. over all chunks; -x.5 is the weight gradient of layer x, when it is split off.
struct LayerOrder {
  std::vector<double> order;
  std::vector<std::optional<std::pair<int, int>>> chunk_and_layer;  // of forwards only, 0-based
};
LayerOrder overlap_layer_order(const std::vector<int>& order, const std::vector<int>& layers_of_chunk,
                               bool split_weight_gradient);

// Static inputs of Megatron's graphs, of which there is one per layer and microbatch: a backward returns the sets of
// its forward's layers, and the next forward of a layer with that signature takes the one that was returned first.
struct MegatronSets {
  int num_sets = 0;
  std::vector<int> set_of_forward;  // [layers of the chunks before * microbatches + microbatch * layers + layer]
};
MegatronSets megatron_sets(const std::vector<int>& order, const GraphLayers& layers, int num_microbatches);
// Of the order over single layers: each is a chunk of its own, weight gradients take and return nothing.
MegatronSets megatron_sets(const LayerOrder& order, const GraphLayers& layers, int num_microbatches);

}  // namespace metroplex::plan
