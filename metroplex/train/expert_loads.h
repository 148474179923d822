// Collects the expert loads of all ranks (moe/load_meter.h) for the table of train.log_experts_interval and for
// train.expert_trace_file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/config.h"
#include "cuda/launch_point.h"
#include "files/expert_trace.h"
#include "moe/context.h"
#include "train/assemble.h"
#include "train/metrics.h"
#include "train/stage_loads.h"

namespace metroplex::train {

// True if the run reports expert loads.
bool counts_experts(const config::Config& config);

// Loss terms as Megatron-LM reports them. Router terms are divided by their coefficient and by the number of MoE
// layers. MTP losses are divided by mtp_loss_scaling_factor / mtp_num_layers. Other terms are unchanged.
std::map<std::string, double> shown_terms(const config::Model& model, const std::map<std::string, double>& terms);

class ExpertLoads {
 public:
  // Requires counts_experts(a.config). Rank 0 opens the trace and logs its write errors. Throws base::Error("files")
  // if the file belongs to another run.
  ExpertLoads(const Assembly& a, files::FileSystem& disk, base::Log& log);

  // Call after every step. Collective over the world in steps where a table or trace line is due. In other steps
  // nothing is read, and ranks communicate only if StageLoads reduces early. Returns the layers of the table on rank
  // 0 when it is due, else an empty list.
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

// Returns null if model.moe_router_force_trace is not set. If the trace was recorded with the same ep and etp, each
// rank gets the loads of its own source rank. Otherwise every rank gets the sum over all sources. Throws base::Error
// if the trace has a different number of experts, lacks a MoE layer, has no iteration or cannot be read
// (files/expert_trace.h).
std::shared_ptr<const moe::RecordedLoads> forced_loads(const config::Model& model, const moe::ExpertContext& experts,
                                                       files::FileSystem& disk);

// Writes the inputs and results of every ECHO plan to model.moe_echo_dump_dir, so that plans can be recomputed
// offline. JSON lines, one file per rank (clones-<rank>.jsonl); a later run appends.

// Returns an ExpertContext::on_clone_plan that writes one line per plan; the host waits for each plan:
//   {"layer":3,"counts":[[...],...],"owners":[...],"source_rows":[[...],...],"loads":[[...],[...]]}
// Fields are those of ClonePlan. Throws base::Error("files") if the file cannot be written.
std::function<void(int64_t layer, const moe::ClonePlan&)> clone_dump(files::FileSystem& disk,
                                                                     const std::string& folder, int rank,
                                                                     const cuda::Target& target);

}  // namespace metroplex::train
