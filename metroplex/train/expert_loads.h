// What the ranks know of the load of their experts (moe/load_meter.h), brought together: the table of
// train.log_experts_interval and the lines of train.expert_trace_file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "files/expert_trace.h"
#include "train/assemble.h"
#include "train/metrics.h"
#include "train/stage_loads.h"

namespace metroplex::train {

// Whether a run of this configuration wants to know.
bool counts_experts(const config::Config& config);

// Loss terms as Megatron-LM shows them: those of the router divided by their coefficients, as a mean over the layers
// with experts. Others stay.
std::map<std::string, double> shown_terms(const config::Model& model, const std::map<std::string, double>& terms);

class ExpertLoads {
 public:
  // Requires counts_experts(a.config). Rank 0 opens the trace and says through `log` what goes wrong with it. Throws
  // base::Error("files") where that is another's.
  ExpertLoads(const Assembly& a, base::Log& log);

  // Behind a step. Collective over the world where something is due, else nothing is read, and nothing sent but what
  // StageLoads adds up ahead in a long interval. On rank 0 the layers of the table where it is due; nothing
  // otherwise.
  std::vector<ExpertMetrics> after_step(int64_t iteration);

 private:
  void write_trace(int64_t iteration);
  std::vector<ExpertMetrics> table();
  at::Tensor all_layers(const at::Tensor& stage) const;

  const Assembly& a_;
  base::Log& log_;
  files::ExpertTraceHead head_;
  std::optional<files::ExpertTraceWriter> trace_;  // rank 0
  bool traces_;
  StageLoads loads_;  // since the last table
};

}  // namespace metroplex::train
