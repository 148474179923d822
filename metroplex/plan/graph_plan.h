// Which captured graphs a pipeline rank needs, from its row of the table. A *live set* of a chunk is one forward and
// one backward graph of each of its captured layers, with their static inputs, outputs and saved activations in one
// pool; its graphs replay in the order of their capture. A microbatch takes a set with its forward and holds it until
// its backward is done and every send out of the set has been waited for (borders.h says when that is). The set that
// was freed first is reused first, so there are as many sets as are ever held at once, not one per microbatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
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

// One graph of one layer. All layers of a pass are captured in a row.
struct GraphCapture {
  ActionKind kind = ActionKind::forward;  // or backward, or weight
  int chunk = 0;
  int layer = 0;       // of the chunk's captured ones
  int set = 0;         // of the chunk
  int microbatch = 0;  // in whose pass it is captured: the first that takes the set
  bool operator==(const GraphCapture&) const = default;
};

struct GraphPlan {
  std::vector<int> sets_of_chunk;        // most held at a time
  std::vector<std::vector<int>> set_of;  // [chunk][microbatch]: 0 .. sets_of_chunk[chunk] - 1
  std::vector<int> layers_of_chunk;      // captured ones
  std::vector<GraphCapture> captures;    // in order

  int num_sets() const;
  int64_t num_graphs() const { return static_cast<int64_t>(captures.size()); }
};

// Requires: verify(table) has passed. Throws base::Error("plan") when `layers` has another number of chunks.
GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers);

// Throws base::Error("plan") unless no pass writes into a set of which anything will still be read, and every graph
// is captured once, in the first pass that takes its set. Names buffer, set, writer and last reader.
void verify_graphs(const GraphPlan& plan, const PipelineTable& table, int pp_rank);

// Until when the buffers of the set of (microbatch, chunk) are read. Times count half actions: action i waits for
// what it needs at time 2 i and computes at time 2 i + 1.
struct SetReads {
  struct Reader {
    int64_t until = -1;     // time of the last read; -1: never read
    std::string what = {};  // "its backward", "its send_forward, waited for in ..."
  };
  int64_t written = -1;  // time of the forward
  Reader input, output, input_gradient;

  int64_t until() const;
};
using ReadsOfSets = std::vector<std::vector<SetReads>>;  // [chunk][microbatch]
// A send reads until it has been waited for.
ReadsOfSets set_reads(const PipelineTable& table, int pp_rank);
// The plan for these reads.
GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers, const ReadsOfSets& reads);

// Of one rank: static inputs and results of each layer in each set. `gradients`: of the layers' results, one buffer
// for all that have the same place among them and the same size; `input_gradients`: of a chunk's inputs, one per set.
// Inputs and gradients have buffers of their own, the others lie in the pools.
struct GraphBytes {
  int64_t inputs = 0, results = 0, gradients = 0, input_gradients = 0;
  int64_t total() const { return inputs + results + gradients + input_gradients; }
};
// The static tensors of what is captured of a layer, in bytes.
struct GraphTensors {
  std::vector<int64_t> inputs, results;
  std::vector<int64_t> integers = {};       // further results, which have no gradient
  bool from_start = false, to_end = false;  // of the layer: neighbours in a chunk that meet share a tensor
};
// tensors: by signature.
GraphBytes graph_bytes(const GraphPlan& plan, const GraphLayers& layers, const std::map<int, GraphTensors>& tensors);

// The order in which Megatron captures the graphs of a pipeline rank, and how many static input sets it needs: the
// numbers that ours are compared with. Sources: TECudaGraphHelper,
// get_overlap_moe_expert_parallel_comm_order.
//
// Chunks in an order are 1-based: +c is a forward of chunk c-1, -c its backward; microbatches follow first in, first
// out.

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
