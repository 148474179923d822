// Predicts the memory of a rank before anything runs, by replaying the trace of its layers over the pipeline table
// (docs/memory.md). Exact to a few scalars, except for memory that libraries allocate outside libtorch's allocators
// and for rounding by the GPU caching allocator.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/pipeline_table.h"
#include "replay/rank_trace.h"

namespace metroplex::replay {

struct MemoryUse {
  int64_t parameters = 0;
  int64_t gradients = 0;        // persistent
  int64_t main_parameters = 0;  // or the 16-bit remainders that extend bf16 parameters to fp32
  int64_t moments = 0;
  int64_t activations = 0;    // with border tensors: maximum between two actions
  int64_t communication = 0;  // maximum of gathered units (ZeRO-3) and of RankTrace::transient
  int64_t graphs = 0;         // of partially captured layers: GraphMemory
  int64_t workspace = 0;      // the peak minus the others, or 0 if they do not peak at the same time
  // optim.optimizer_cpu_offload: main parameters and moments, which are counted only here, and the buffers of the
  // step. It is host memory even if the rest is on a GPU.
  int64_t host = 0;

  int64_t optimizer() const { return main_parameters + moments + host; }
  int64_t total() const {
    return parameters + gradients + main_parameters + moments + activations + communication + graphs + workspace +
           host;
  }
};

struct MemoryPrediction {
  MemoryUse use;
  int64_t peak = 0;                   // total during a step
  int64_t batches = 0;                // part of the peak: the step's microbatches
  int64_t tables = 0;                 // part of the peak: RankTrace::tables
  int64_t libraries = 0;              // part of the peak: RankTrace::libraries
  int64_t borders = 0;                // part of activations: tensors between stages
  int64_t gathered = 0;               // part of communication: ZeRO-3
  int64_t gradient_buckets = 0;       // part of communication: RankTrace::transient
  int64_t graph_pools = 0;            // part of graphs
  std::vector<ReplayMoment> moments;  // segments of a step, in order
};

// Bytes that graphs of partially captured layers hold after capture.
struct GraphMemory {
  int64_t static_buffers = 0;  // inputs with their microbatches, incoming gradients
  int64_t pools = 0;           // maximum use of the pools of all instances
};

// Predicts the memory of the rank in row `pp_rank` of the table. With trace.graphs the peak covers the full run,
// whose first steps run eagerly. All other figures are for steps that replay graphs.
MemoryPrediction predict_memory(const RankTrace& trace, const plan::PipelineTable& table, int pp_rank,
                                const GraphMemory& graphs = {});

struct MemoryCategory {
  const char* name;
  int64_t MemoryUse::*bytes;
};
inline constexpr std::array<MemoryCategory, 9> kMemoryCategories{{{"parameters", &MemoryUse::parameters},
                                                                  {"gradients", &MemoryUse::gradients},
                                                                  {"main parameters", &MemoryUse::main_parameters},
                                                                  {"moments", &MemoryUse::moments},
                                                                  {"activations", &MemoryUse::activations},
                                                                  {"communication", &MemoryUse::communication},
                                                                  {"graphs", &MemoryUse::graphs},
                                                                  {"workspace", &MemoryUse::workspace},
                                                                  {"host", &MemoryUse::host}}};

}  // namespace metroplex::replay
