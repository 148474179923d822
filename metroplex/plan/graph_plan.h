// Which captured graphs a pipeline rank needs, from its row of the table. A *live set* of a chunk is one forward and
// one backward graph of each of its captured layers, with their static inputs, results and what lies between them:
// a pool of its own, whose graphs replay in the order of their capture. A microbatch takes a set with its forward and
// holds it until its backward is done and whatever was sent out of the set has been waited for (borders.h says when
// the executor does). Sets are used again in the order in which they become free, so there are as many as are ever
// held at a time, not as many as microbatches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/graph_order.h"
#include "plan/pipeline_table.h"

namespace metroplex::plan {

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
// The same with sends that are done when they are issued: what Megatron assumes.
GraphPlan plan_graphs_without_sends(const PipelineTable& table, int pp_rank, const GraphLayers& layers);

// Throws base::Error("plan") unless no pass writes into a set of which anything will still be read, and every graph
// is captured once, in the first pass that takes its set. Names buffer, set, writer and last reader.
void verify_graphs(const GraphPlan& plan, const PipelineTable& table, int pp_rank);

// Until when the buffers of the set of (microbatch, chunk) are read. A moment is 2 * action + 1 while that action
// computes; what is waited for before it computes is done at 2 * action.
struct SetReads {
  struct Reader {
    int64_t until = -1;     // moment; -1: nobody reads it
    std::string what = {};  // "its backward", "its send_forward, waited for in ..."
  };
  int64_t written = -1;  // moment of the forward
  Reader input, output, input_gradient;

  int64_t until() const;
};
// [chunk][microbatch]. `sends`: whether a send reads until it has been waited for.
std::vector<std::vector<SetReads>> set_reads(const PipelineTable& table, int pp_rank, bool sends);

// Of one rank. A static input and a result for each layer of each set; the gradient of a result enters each backward
// through one buffer a signature, and that of a chunk's input leaves through one a set.
struct GraphBytes {
  int64_t inputs = 0, results = 0, gradients = 0;
  int64_t total() const { return inputs + results + gradients; }
};
// layer_bytes: of one input, whatever its signature; a result is as large.
GraphBytes graph_bytes(const GraphPlan& plan, const GraphLayers& layers, int64_t layer_bytes);

}  // namespace metroplex::plan
