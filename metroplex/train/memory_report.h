// What a rank holds in a training step, by category, measured: parameters, gradients and optimizer state from the
// tensors themselves; activations as what forwards and backwards add to a meter, border tensors as the executor
// counts them, both between two actions of the pipeline; communication buffers at every moment of a segment and at
// every gradient; workspace is what the peak leaves. And the few lines that put it beside what the configuration
// predicts.
// Where ranks are threads the meter of one misses what another frees: of a received tensor the sender may let go
// last. Repeated steps correct the activations; the peak stays a little off with pp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/memory_meter.h"
#include "plan/memory.h"
#include "train/assemble.h"

namespace metroplex::train {

struct MeasuredMemory {
  plan::MemoryUse use;
  int64_t peak = 0;      // of everything, in this step
  int64_t borders = 0;   // of activations: tensors on their way between stages
  int64_t gathered = 0;  // of communication: units of ZeRO-3, at most
};

class MemoryReport {
 public:
  // Looks on until destroyed. The meter was made on this thread before the parameters; both outlive the report.
  MemoryReport(Assembly& assembly, cuda::MemoryMeter& meter);
  ~MemoryReport();
  MemoryReport(const MemoryReport&) = delete;
  MemoryReport& operator=(const MemoryReport&) = delete;

  // The microbatches have been made. Not for the first step: what grows once (rotary tables) is there. Of several
  // steps of the same shape the least that every action added counts.
  void begin_step();
  MeasuredMemory end_step() const;

 private:
  class Sampler;
  void after_action(const plan::Action& action);
  void sample();
  int64_t rest() const;

  Assembly& a_;
  cuda::MemoryMeter& meter_;
  std::unique_ptr<Sampler> sampler_;
  bool begun_ = false;
  int64_t last_ = 0;  // the meter less border tensors and buffers, after the action before
  struct Action {
    int64_t added = 0, borders = 0;
  };
  std::vector<Action> actions_;
  size_t at_ = 0;
  int64_t most_gathered_ = 0, most_transient_ = 0;
};

// Collective. Lines for rank 0 and for the maximum over ranks: measured and, in parentheses, predicted.
std::vector<std::string> memory_lines(const Assembly& assembly, const MeasuredMemory& measured,
                                      int64_t num_microbatches);

// What the configuration predicts for this rank.
plan::MemoryPrediction predicted_memory(const Assembly& assembly, int64_t num_microbatches);

}  // namespace metroplex::train
