// Measures the memory of a rank in a training step by category, and formats log lines that compare it with the
// prediction. Parameters, gradients and optimizer state are tensor sizes. Activations are what forward and backward
// actions add to a memory meter. Border tensors are counted by the executor, between pipeline actions. Communication
// buffers are sampled around every segment and at every gradient. Workspace is the rest of the peak.
// If ranks are threads, a rank's meter misses memory that another rank frees last, such as a received tensor freed by
// its sender. Repeated steps correct the activations; the peak stays slightly off with pp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/memory_meter.h"
#include "replay/memory.h"
#include "step/assemble.h"

namespace metroplex::forecast {

struct MeasuredMemory {
  replay::MemoryUse use;
  int64_t peak = 0;      // total, in this step
  int64_t borders = 0;   // part of activations: tensors in transit between stages
  int64_t gathered = 0;  // part of communication: largest total of gathered ZeRO-3 units
};

class MemoryReport {
 public:
  // Observes the executor and the stages until destroyed. The meter must be created on this thread before the
  // parameters. Assembly and meter outlive the report.
  MemoryReport(step::Assembly& assembly, device::MemoryMeter& meter);
  ~MemoryReport();
  MemoryReport(const MemoryReport&) = delete;
  MemoryReport& operator=(const MemoryReport&) = delete;

  // Call after the microbatches are made. Do not call in the first step, in which rotary tables and other caches
  // grow. Over several steps of the same shape, the minimum added by each action is used.
  void begin_step();
  MeasuredMemory end_step() const;

 private:
  class Sampler;
  void after_action(const plan::Action& action);
  void sample();
  int64_t rest() const;

  step::Assembly& assembly_;
  device::MemoryMeter& meter_;
  std::unique_ptr<Sampler> sampler_;
  bool begun_ = false;
  int64_t last_ = 0;  // meter minus border tensors and buffers, after the previous action
  struct Action {
    int64_t added = 0, borders = 0;
  };
  std::vector<Action> actions_;
  size_t at_ = 0;
  int64_t max_gathered_ = 0, max_transient_ = 0;
};

// {"parameters": 1, ..., "peak": 2}: bytes by category.
std::string memory_json(const replay::MemoryUse& use, int64_t peak);

// Collective. Lines for rank 0 and for the maximum over ranks, as measured (predicted) MiB.
std::vector<std::string> memory_lines(const step::ProcessContext& process, const MeasuredMemory& measured,
                                      int64_t num_microbatches);

// The predicted memory of this rank, for eager steps.
replay::MemoryPrediction predicted_memory(const step::ProcessContext& process, int64_t num_microbatches);

}  // namespace metroplex::forecast
