// The allocations and operations of one rank's share of the model as plain data: recorded from the real layers,
// buffers and optimizer, which run once on the meta device (train/trace.h). Nothing here knows about layers.
// replay_trace walks the pipeline table with it; plan/memory.h predicts memory from that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/layout.h"
#include "plan/pipeline_table.h"

namespace metroplex::plan {

// A stretch of allocations and frees, and the event that ends it.
struct TraceStep {
  enum class End {
    nothing,
    opens,  // a gradient of `param` is about to be added: its bucket must exist
    used    // it has been added
  };
  int64_t net = 0;   // bytes allocated minus bytes freed
  int64_t most = 0;  // the maximum of that sum at any time, at least 0
  End end = End::nothing;
  size_t param = 0;  // index into RankTrace::params
};

// An operator or a collective, in the order of its start.
struct TraceOperation {
  std::string name;
  std::string group;  // of a collective: the ranks that take part; empty: an operator
  double flops = 0;
  int64_t bytes = 0;  // of an operator read and written; of a collective what goes in or comes out, the larger
};

// One forward or backward of an island of segments, or what happens between two of them.
struct IslandTrace {
  int block = -1, segment = 0;  // -1: between two islands
  bool backward = false;
  std::vector<TraceStep> steps;
  std::vector<TraceOperation> operations;

  int64_t net() const;
  int64_t most() const;  // above the beginning
};

// What one forward or backward of a chunk does, of one microbatch.
struct ActionTrace {
  std::vector<IslandTrace> islands;
  int64_t added = 0;     // change of what is held between actions, without border tensors; negative for a backward
  int64_t gathered = 0;  // maximum of the gathered units of ZeRO-3
};

struct ChunkTrace {
  StageLayers layers;
  int64_t input = 0, output = 0;  // bytes of the border tensors of one microbatch; 0 at the ends of the model
  ActionTrace forward, backward;
  // The border tensors that forward and backward leave are in the pool of a graph instance, and count there.
  bool output_in_pool = false, input_gradient_in_pool = false;
};

// The graphs of a chunk in a graph instance (plan/graph_plan.h).
struct ChunkGraphs {
  int islands = 0;                        // captured parts of layers
  int64_t pool = 0, evaluation_pool = 0;  // the most that a pass holds in the pool; 0: evaluation is not captured
  std::map<std::string, int64_t> inputs;  // bytes of static input buffers, by form and index
};

// Passes whose captured parts run as graphs (train.cuda_graph_impl: local, transformer_engine).
struct GraphTrace {
  std::vector<ChunkTrace> chunks;   // allocations outside pools and static buffers
  std::vector<ChunkGraphs> graphs;  // [chunk]
  int64_t gradients = 0;            // static buffers of the rank's incoming gradients
};

struct TraceParam {
  std::string name;
  std::vector<int64_t> shape;  // of the local part
  int uses_per_microbatch = 1;
  int64_t numel() const;
};

// Transient gradient buckets (ZeRO-2 and 3) of one family of parameters.
struct TransientFamily {
  std::vector<int64_t> bytes;                // of each bucket
  std::vector<std::vector<size_t>> buckets;  // indices into RankTrace::params
};

struct RankTrace {
  std::vector<TraceParam> params;    // forward order, a shared one once
  std::vector<ChunkTrace> chunks;    // of passes that run eagerly
  std::optional<GraphTrace> graphs;  // nothing: no parts of layers are captured
  int64_t batch = 0;                 // of a microbatch's tensors
  std::vector<TransientFamily> transient;
  bool overlaps = false;  // the reduction of one such bucket is under way while the next one fills
  // Kept all the time.
  int64_t parameters = 0, gradients = 0, main_parameters = 0, moments = 0;
  int64_t host = 0;       // likewise, in host memory with optim.optimizer_cpu_offload
  int64_t tables = 0;     // likewise: what else was made, as rotary positions and state without gradient
  int64_t libraries = 0;  // likewise: what cuBLAS works in, on a GPU
  IslandTrace update;     // after the last backward: final gradients, norm, update
};

// One run of an island inside an action.
struct ReplayMoment {
  size_t action = 0;  // index into the rank's list
  int block = 0;
  bool backward = false;
  int64_t most = 0;  // maximum, in bytes above those held before the action
};

// Bytes above what is held before the first action.
struct ReplayPeaks {
  int64_t activations = 0, borders = 0;  // after the action after which their sum is largest
  int64_t gathered = 0;                  // ZeRO-3, at any time
  int64_t gradient_buckets = 0;          // ZeRO-2 and 3, at any time
  int64_t most = 0;                      // of everything at any time, the update included
  std::vector<ReplayMoment> moments;     // in order
};

// Walks a rank's list of actions and adds up the memory after each of them and the maximum within: the traces of its
// chunks, border tensors as the executor holds them (borders.h), and transient gradient buckets (FillingBuckets of
// buckets.h). All of it follows from the table alone.
ReplayPeaks replay_trace(const RankTrace& trace, const PipelineTable& table, int pp_rank);
// The same with other traces of the chunks: those of trace.graphs.
ReplayPeaks replay_trace(const RankTrace& trace, const std::vector<ChunkTrace>& chunks, const PipelineTable& table,
                         int pp_rank);

}  // namespace metroplex::plan
