// Which captured graphs a pipeline rank needs, from its row of the table. A *graph instance* is the memory of one
// pass of one microbatch through one chunk: static inputs, and a pool with outputs and saved activations. A pass
// takes an instance with its forward and holds it until its backward is done and its output has been sent (borders.h
// says when that is known). Then the instance is free for any pass of any chunk, so a rank has as many instances as
// passes hold one at a time. (If chunks differ in their number of captured layers, those with different numbers use
// different instances where that takes less memory.) Graphs contain addresses of parameters, so each chunk that runs
// in an instance has a forward and a backward graph of each of its captured layers there.
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
  int layer = 0;  // of the chunk's captured ones
  int instance = 0;
  int microbatch = 0;  // of the first pass of the chunk in the instance, which captures
  bool operator==(const GraphCapture&) const = default;
};

struct GraphPlan {
  int num_instances = 0;
  std::vector<std::vector<int>> instance_of;  // [chunk][microbatch]; -1: the chunk has no captured layers
  std::vector<int> layers_of_chunk;           // captured ones
  std::vector<GraphCapture> captures;         // in order

  int64_t num_graphs() const { return static_cast<int64_t>(captures.size()); }
  // Returns, for each instance, the chunks that run in it, ascending.
  std::vector<std::vector<size_t>> chunks_of_instance() const;
};

// Requires: verify(table) has passed. Throws base::Error("plan") when `layers` has another number of chunks.
GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers);

// Throws base::Error("plan") if a pass writes into an instance of which anything will still be read, or if a graph is
// not captured once, in the first pass of its chunk in the instance. Names buffer, instance, writer and last reader.
// Graphs of different chunks that share a pool are safe for the same reason: their passes do not overlap.
void verify_graphs(const GraphPlan& plan, const PipelineTable& table, int pp_rank);

// Until when the buffers of the instance of (microbatch, chunk) are read. Times count half actions: action i waits
// for what it needs at time 2 i and computes at time 2 i + 1.
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
// The send of an output reads until it has been waited for.
ReadsOfPasses pass_reads(const PipelineTable& table, int pp_rank);
// The plan for these reads.
GraphPlan plan_graphs(const PipelineTable& table, int pp_rank, const GraphLayers& layers, const ReadsOfPasses& reads);

// Bytes of one rank. An instance holds the static inputs and results of the largest chunk that runs in it, and
// `input_gradients` of a chunk's inputs. `gradients`: one buffer for all results that have the same index and size.
// Inputs and gradients have buffers of their own, the others are in the pools.
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
