// Collects the expert loads of all ranks (moe/load_meter.h) for the table of train.log_experts_interval and for
// train.expert_trace_file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/config.h"
#include "files/expert_trace.h"
#include "step/assemble.h"
#include "run/metrics.h"
#include "step/stage_loads.h"

namespace metroplex::run {

// Loss terms as Megatron-LM reports them. Router terms are divided by their coefficient and by the number of MoE
// layers. MTP losses are divided by mtp_loss_scaling_factor / mtp_num_layers. Other terms are unchanged.
std::map<std::string, double> normalized_terms(const config::Model& model,
                                               const std::map<std::string, double>& terms);

class ExpertLoads {
 public:
  // Requires step::needs_expert_loads(config). Rank 0 opens the trace and logs its write errors. Throws
  // base::Error("files") if the file belongs to another run.
  ExpertLoads(const step::ProcessContext& process, const step::RankModel& model, files::FileSystem& disk,
              base::Log& log);

  // Call after every step. Collective over the world in steps where a table or trace line is due. In other steps
  // nothing is read, and ranks communicate only if StageLoads reduces early. Returns the layers of the table on rank
  // 0 when it is due, else an empty list.
  std::vector<ExpertMetrics> after_step(int64_t iteration);

 private:
  void write_trace(int64_t iteration);
  std::vector<ExpertMetrics> table();
  at::Tensor all_layers(const at::Tensor& stage) const;

  const step::ProcessContext& process_;
  const step::RankModel& model_;
  base::Log& log_;
  files::ExpertTraceHead head_;
  std::optional<files::ExpertTraceWriter> trace_;  // rank 0
  bool writes_trace_;
  step::StageLoads loads_;  // since the last table
};

}  // namespace metroplex::run
