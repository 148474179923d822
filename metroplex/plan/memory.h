// The memory that a rank will need, predicted before anything runs: the trace of its layers replayed over the
// pipeline table (docs/memory.md). Exact to a few scalars, but for what libraries allocate outside of libtorch's
// allocators, and for what a GPU's allocator gives above what it was asked for.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/pipeline_table.h"
#include "plan/rank_trace.h"

namespace metroplex::plan {

struct MemoryUse {
  int64_t parameters = 0;
  int64_t gradients = 0;        // kept all the time
  int64_t main_parameters = 0;  // or the 16-bit remainders that complete bf16 parameters to fp32
  int64_t moments = 0;
  int64_t activations = 0;    // with border tensors: their maximum between two actions
  int64_t communication = 0;  // maximum of gathered units (ZeRO-3) and of transient gradient buckets (ZeRO-2 and 3)
  int64_t graphs = 0;         // of parts of layers: GraphMemory
  int64_t workspace = 0;      // the peak minus the others, or 0 where these do not peak at the same time
  // optim.optimizer_cpu_offload: main parameters and moments, which then count here, and the buffers of the step.
  // Host memory, also where the rest lies on a GPU.
  int64_t host = 0;

  int64_t optimizer() const { return main_parameters + moments + host; }
  int64_t total() const {
    return parameters + gradients + main_parameters + moments + activations + communication + graphs + workspace +
           host;
  }
};

struct MemoryPrediction {
  MemoryUse use;
  int64_t peak = 0;                   // of everything, in a step
  int64_t batches = 0;                // of the peak: the step's microbatches
  int64_t tables = 0;                 // of the peak: RankTrace::tables
  int64_t libraries = 0;              // of the peak: RankTrace::libraries
  int64_t borders = 0;                // of activations: tensors on their way between stages
  int64_t gathered = 0;               // of communication: ZeRO-3
  int64_t gradient_buckets = 0;       // of communication: ZeRO-2 and 3
  int64_t graph_pools = 0;            // of graphs
  std::vector<ReplayMoment> moments;  // of the segments in a step, in order
};

// Bytes that graphs of parts of layers hold after their capture.
struct GraphMemory {
  int64_t static_buffers = 0;  // inputs with their microbatches, incoming gradients
  int64_t pools = 0;           // the most that tensors take of the pools of all instances
};

// Predicts the memory of the rank in row `pp_rank` of the table. With trace.graphs the peak covers the whole run,
// whose first steps run eagerly; every other figure is for steps that replay graphs.
MemoryPrediction predict_memory(const RankTrace& trace, const PipelineTable& table, int pp_rank,
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

}  // namespace metroplex::plan
