// Allocations and operations of one rank's part of the model as plain data. They are recorded from the real layers,
// buffers and optimizer, which run once on the meta device (forecast/trace.h). This file does not depend on layers.
// replay_trace runs a trace over the pipeline table; replay/memory.h predicts memory from the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/layout.h"
#include "plan/pipeline_table.h"

namespace metroplex::replay {

// A sequence of allocations and frees, and the event that ends it.
struct TraceStep {
  enum class End {
    nothing,
    opens,  // a gradient of `param` is about to be added: its bucket must exist
    used,   // the gradient has been added
    turn    // the other pass of a pair may run (device/turns.h)
  };
  int64_t net = 0;   // bytes allocated minus bytes freed
  int64_t most = 0;  // maximum of the running sum, at least 0
  End end = End::nothing;
  size_t param = 0;  // index into RankTrace::params
};

// An operator, a collective, or the "wait" for a collective, in the order of their starts.
struct TraceOperation {
  std::string name;
  std::string group;  // of a collective; empty: an operator
  double flops = 0;
  int64_t bytes = 0;       // operator: bytes read and written; collective: the larger of input and output
  std::string dtype = {};  // of an operator: of its first floating-point tensor, "bf16"
  int call = 0;            // number of a collective; its "wait" has the same number. 0: an operator
  double seconds = 0;      // of an operator that ran under a timed recorder
  bool in_turn = false;    // of a "wait": the other pass of a pair may run before it (device/turns.h)
};

// One forward or backward of an autograd region, or the work between two regions.
struct IslandTrace {
  int block = -1, segment = 0;  // -1: between two regions
  bool backward = false;
  std::vector<TraceStep> steps = {};
  std::vector<TraceOperation> operations = {};
  bool captured = false;  // one graph replays it (train.cuda_graph_impl: local, transformer_engine)

  int64_t net() const;
  int64_t most() const;  // above the bytes at its start
};

struct ActionTrace {
  std::vector<IslandTrace> regions;
  int64_t added = 0;     // change of the bytes held between actions, without border tensors; negative for a backward
  int64_t gathered = 0;  // maximum of gathered units (ZeRO-3)
};

struct ChunkTrace {
  plan::StageLayers layers;
  int64_t input = 0, output = 0;  // bytes of the border tensors of one microbatch; 0 at the ends of the model
  ActionTrace forward, backward;
  ActionTrace weight;  // if the table has weight actions
  // The output or input gradient is in the pool of a graph instance and counts there.
  bool output_in_pool = false, input_gradient_in_pool = false;
};

// The graphs of a chunk in a graph instance (plan/graph_plan.h).
struct ChunkGraphs {
  int regions = 0;                        // captured autograd regions
  int64_t pool = 0, evaluation_pool = 0;  // maximum bytes of a pass in the pool; 0: evaluation is not captured
  std::map<std::string, int64_t> inputs;  // bytes of static input buffers, by form and index
};

// Passes whose captured parts run as CUDA graphs (train.cuda_graph_impl: local, transformer_engine).
struct GraphTrace {
  std::vector<ChunkTrace> chunks;   // allocations outside pools and static buffers
  std::vector<ChunkGraphs> graphs;  // [chunk]
  int64_t gradients = 0;            // static buffers of incoming gradients
};

struct TraceParam {
  std::string name;
  std::vector<int64_t> shape;  // of the local shard
  int uses_per_microbatch = 1;
  int64_t rounded_bytes = 0;  // of the kept rounded values (precision.keep_rounded_weights); only in a StepTrace
  int64_t numel() const;
};

// Gradient buckets of one parameter family that are transient (ZeRO-2 and 3), or whose reductions need buffers
// (parallel.reduce_scatter_with_fp32_accumulation).
struct TransientFamily {
  std::vector<int64_t> bytes;                // of each bucket; 0 if permanent
  std::vector<std::vector<size_t>> buckets;  // indices into RankTrace::params
  std::vector<int64_t> buffers = {};         // of each bucket's reduction; empty: none
  bool permanent = false;                    // reduced once per step
};

struct RankTrace {
  std::vector<TraceParam> params;    // forward order; a shared parameter is listed once
  std::vector<ChunkTrace> chunks;    // passes that run eagerly
  std::optional<GraphTrace> graphs;  // unset: no captured layers
  int64_t batch = 0;                 // bytes of one microbatch's tensors
  std::vector<TransientFamily> transient;
  bool overlaps = false;  // the reduction of one bucket overlaps with filling the next one
  // The following bytes are persistent.
  int64_t parameters = 0, gradients = 0, main_parameters = 0, moments = 0;
  int64_t host = 0;       // in host memory, with optim.optimizer_cpu_offload
  int64_t tables = 0;     // other tensors, such as rotary tables and state without gradient
  int64_t libraries = 0;  // cuBLAS workspaces on a GPU
  IslandTrace update;     // after the last backward: final gradients, norm, update
};

// One execution of an autograd region inside an action.
struct ReplayMoment {
  size_t action = 0;  // index into the rank's action list
  int block = 0;
  bool backward = false;
  int64_t most = 0;  // maximum bytes above those held before the action
  int64_t held = 0;  // bytes held before the action
};

// Bytes above those held before the first action.
struct ReplayPeaks {
  int64_t activations = 0, borders = 0;  // after the action with their largest sum
  int64_t gathered = 0;                  // ZeRO-3 maximum
  int64_t gradient_buckets = 0;          // maximum of RankTrace::transient
  int64_t most = 0;                      // overall maximum, including the update
  std::vector<ReplayMoment> moments;
};

// Iterates over a rank's actions and computes the memory after each action and the maximum within it. Combines the
// traces of the chunks, border tensors as held by the executor (borders.h), and transient gradient buckets
// (FillingBuckets in buckets.h). The result depends on the table alone.
ReplayPeaks replay_trace(const RankTrace& trace, const plan::PipelineTable& table, int pp_rank);
// The same with different chunk traces, such as those of trace.graphs.
ReplayPeaks replay_trace(const RankTrace& trace, const std::vector<ChunkTrace>& chunks,
                         const plan::PipelineTable& table, int pp_rank);

}  // namespace metroplex::replay
