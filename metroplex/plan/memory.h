// What a rank will hold, in bytes, before anything runs: the trace of its layers replayed over the pipeline's table
// (docs/memory.md). Everything is exact to a few scalars, but for what libraries take behind libtorch's allocators.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/pipeline_table.h"
#include "plan/rank_trace.h"
#include "plan/trace_replay.h"

namespace metroplex::plan {

struct MemoryUse {
  int64_t parameters = 0;
  int64_t gradients = 0;        // kept all the time
  int64_t main_parameters = 0;  // or the remainders that make them of bf16 parameters
  int64_t moments = 0;
  int64_t activations = 0;    // with border tensors, at the border of two actions where they are most
  int64_t communication = 0;  // gathered units (ZeRO-3) and passing gradient buckets (ZeRO-2 and 3), each at most
  int64_t workspace = 0;      // the peak less the others, or 0: those are not all largest at once
  // optim.optimizer_cpu_offload: main parameters and moments, which then count here, and the buffers of the step.
  // Host memory, also where the rest lies on a GPU.
  int64_t host = 0;

  int64_t optimizer() const { return main_parameters + moments + host; }
  int64_t total() const {
    return parameters + gradients + main_parameters + moments + activations + communication + workspace + host;
  }
};

struct MemoryPrediction {
  MemoryUse use;
  int64_t peak = 0;                   // of everything, in a step
  int64_t batches = 0;                // of the peak: the step's microbatches
  int64_t tables = 0;                 // of the peak: RankTrace::tables
  int64_t borders = 0;                // of activations: tensors on their way between stages
  int64_t gathered = 0;               // of communication: ZeRO-3
  int64_t gradient_buckets = 0;       // of communication: ZeRO-2 and 3
  std::vector<ReplayMoment> moments;  // of the segments in a step, in order
};

// Of a rank in row `pp_rank` of the table.
MemoryPrediction predict_memory(const RankTrace& trace, const PipelineTable& table, int pp_rank);

struct MemoryCategory {
  const char* name;
  int64_t MemoryUse::*bytes;
};
inline constexpr std::array<MemoryCategory, 8> kMemoryCategories{{{"parameters", &MemoryUse::parameters},
                                                                  {"gradients", &MemoryUse::gradients},
                                                                  {"main parameters", &MemoryUse::main_parameters},
                                                                  {"moments", &MemoryUse::moments},
                                                                  {"activations", &MemoryUse::activations},
                                                                  {"communication", &MemoryUse::communication},
                                                                  {"workspace", &MemoryUse::workspace},
                                                                  {"host", &MemoryUse::host}}};

}  // namespace metroplex::plan
