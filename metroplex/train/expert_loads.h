// Collects the expert loads of all ranks (moe/load_meter.h): the table of train.log_experts_interval and the lines of
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

// Whether a run of this configuration reports them.
bool counts_experts(const config::Config& config);

// Loss terms as Megatron-LM shows them: those of the router divided by their coefficients, as a mean over the layers
// with experts. Others stay.
std::map<std::string, double> shown_terms(const config::Model& model, const std::map<std::string, double>& terms);

class ExpertLoads {
 public:
  // Requires counts_experts(a.config). Rank 0 opens the trace and logs its write errors. Throws base::Error("files")
  // where the file belongs to another run.
  ExpertLoads(const Assembly& a, files::FileSystem& disk, base::Log& log);

  // To be called after every step. Collective over the world in a step where something is due; in others nothing is
  // read, and nothing sent but what StageLoads reduces early in a long interval. Returns the layers of the table on
  // rank 0 when it is due, else nothing.
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

// The expert trace of model.moe_router_force_trace, in the form that routers read.

// Null where no trace is named. Of a trace that was recorded over as many ranks of ep and etp each rank gets the
// loads of its own source, of others the sum over all sources. Throws base::Error where the trace has other experts
// than the model, lacks one of its layers or has no iteration, or cannot be read (files/expert_trace.h).
std::shared_ptr<const moe::RecordedLoads> forced_loads(const config::Model& model, const moe::ExpertContext& experts,
                                                       files::FileSystem& disk);

// The folder of model.moe_echo_dump_dir: what every plan of clones was made of and what it is, to be planned again
// elsewhere. JSON lines, a file for each rank (clones-<rank>.jsonl); a later run goes on behind them.

// ExpertContext::on_clone_plan that writes a line for each plan, which the host waits for:
//   {"layer":3,"counts":[[...],...],"owners":[...],"source_rows":[[...],...],"loads":[[...],[...]]}
// as ClonePlan has them. Throws base::Error("files") where nothing can be written.
std::function<void(int64_t layer, const moe::ClonePlan&)> clone_dump(files::FileSystem& disk,
                                                                     const std::string& folder, int rank,
                                                                     const cuda::Target& target);

}  // namespace metroplex::train
