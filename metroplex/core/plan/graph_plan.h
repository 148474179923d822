// The captured graphs of a pipeline rank, derived from its row of the table. A *graph instance* is the memory of
// one pass of one microbatch through one chunk. It has static inputs, and a pool for outputs and saved
// activations. A pass acquires an instance with its forward. It holds the instance until its backward is done and
// its output has been sent (see borders.h). Then any pass of any chunk may use it, so the number of instances is
// the maximum number of live passes. Chunks with different numbers of captured layers use separate instances if
// that takes less memory. Graphs contain parameter addresses. Each chunk that runs in an instance therefore has
// its own forward and backward graph per captured layer.
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

// The captured layers of a rank's chunks. Layers whose inputs have equal shapes and dtypes have equal signatures,
// which are arbitrary integers.
struct GraphLayers {
  std::vector<std::vector<int>> signatures;  // [chunk][layer]
};
// Returns layers with one common signature.
GraphLayers alike_layers(const std::vector<int>& layers_of_chunk);

// One graph of one layer. All layers of a pass are captured consecutively.
struct GraphCapture {
  ActionKind kind = ActionKind::forward;  // or backward, or weight
  int chunk = 0;
  int layer = 0;  // index among the captured layers of the chunk
  int instance = 0;
  int microbatch = 0;  // the first pass of the chunk in the instance, which is captured
  bool operator==(const GraphCapture&) const = default;
};

struct GraphPlan {
  int num_instances = 0;
  std::vector<std::vector<int>> instance_of;  // [chunk][microbatch]; -1: the chunk has no captured layers
  std::vector<int> layers_of_chunk;           // captured layers
  std::vector<GraphCapture> captures;

  int64_t num_graphs() const { return static_cast<int64_t>(captures.size()); }
  // Returns, for each instance, the chunks that run in it, ascending.
  std::vector<std::vector<size_t>> chunks_of_instance() const;
};

// Requires that verify(table) has passed. Throws base::Error("plan") if `layers` has a different number of chunks.
GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers);

// Throws base::Error("plan") if a pass writes to an instance whose content is still needed. Also throws if a graph is
// not captured exactly once, in the first pass of its chunk in the instance. The message contains buffer, instance,
// writer and last reader. Graphs of different chunks may share a pool for the same reason: their passes do not
// overlap.
void verify_graphs(const GraphPlan& plan, const PipelineTable& table, int pp_rank);

// Last reads of the instance buffers of (microbatch, chunk). Times count half actions: action i waits for its inputs
// at time 2 i and computes at time 2 i + 1.
struct PassReads {
  struct Reader {
    int64_t until = -1;     // time of the last read; -1: never read
    std::string what = {};  // "its backward", "its send_forward, waited for in ..."
  };
  int64_t written = -1;  // time of the forward
  Reader input, output, input_gradient;

  int64_t until() const;
};
using ReadsOfPasses = std::vector<std::vector<PassReads>>;  // [chunk][microbatch]
// A send reads its output until its wait has returned.
ReadsOfPasses pass_reads(const PipelineTable& table, int pp_rank);
GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers, const ReadsOfPasses& reads);

// Bytes of one rank. An instance holds the static inputs and results of the largest chunk that runs in it, and
// `input_gradients` for the inputs of a chunk. `gradients`: one buffer for all results of equal index and size.
// Inputs and gradients have separate buffers; the rest is in the pools.
struct GraphBytes {
  int64_t inputs = 0, results = 0, gradients = 0, input_gradients = 0;
  int64_t total() const { return inputs + results + gradients + input_gradients; }
};
// Sizes in bytes of the static tensors of a layer's captured part.
struct GraphTensors {
  std::vector<int64_t> inputs, results;
  std::vector<int64_t> integers = {};  // further results without gradient
  // True if the part includes the start or end of the layer. Adjacent layers then share a tensor.
  bool from_start = false, to_end = false;
};
// `tensors` is keyed by signature.
GraphBytes graph_bytes(const GraphPlan& plan, const GraphLayers& layers, const std::map<int, GraphTensors>& tensors);

// Megatron's capture order of a pipeline rank and its number of static input sets, for comparison. Sources:
// TECudaGraphHelper, get_overlap_moe_expert_parallel_comm_order.
//
// Chunks in an order are 1-based: +c is a forward of chunk c-1, -c its backward. Microbatches are in FIFO order.
std::vector<int> capture_order(const PipelineTable& table, int pp_rank);

// Order over single layers for the schedule in which the layers of a forward alternate with those of the previous
// backward. Layers are numbered from 1 over all chunks. -x.5 is the weight gradient of layer x if it is split off.
struct LayerOrder {
  std::vector<double> order;
  std::vector<std::optional<std::pair<int, int>>> chunk_and_layer;  // forwards only, 0-based
};
LayerOrder overlap_layer_order(const std::vector<int>& order, const std::vector<int>& layers_of_chunk,
                               bool split_weight_gradient);

// Static inputs of Megatron's graphs, which are captured per layer and microbatch. A backward returns the sets of its
// forward's layers. The next forward of a layer with the same signature takes the set that was returned first.
struct MegatronSets {
  int num_sets = 0;
  std::vector<int> set_of_forward;  // [layers of previous chunks * microbatches + microbatch * layers + layer]
};
MegatronSets megatron_sets(const std::vector<int>& order, const GraphLayers& layers, int num_microbatches);
// For the order over single layers: each layer is its own chunk, and weight gradients neither take nor return sets.
MegatronSets megatron_sets(const LayerOrder& order, const GraphLayers& layers, int num_microbatches);

}  // namespace metroplex::plan
