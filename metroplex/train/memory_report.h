// The measured memory of a rank in a training step, by category, and the lines of the log that compare it with the
// prediction. Parameters, gradients and optimizer state are the sizes of their tensors; activations are what forwards
// and backwards add to a memory meter, and border tensors what the executor counts, both between pipeline actions;
// communication buffers are sampled around every segment and at every gradient; workspace is the rest of the peak.
// Where ranks are threads, one rank's meter misses memory that another one frees last (a received tensor, by its
// sender). Repeated steps correct the activations; the peak stays slightly off with pp.
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

  // To be called when the microbatches have been made, and not in the first step, in which rotary tables and the like
  // grow. Over several steps of the same shape, the minimum that each action added counts.
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
