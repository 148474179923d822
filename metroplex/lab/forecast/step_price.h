// Predicts the time of a training step on a machine, before it runs.
#pragma once

#include <vector>

#include "forecast/expert_load.h"
#include "forecast/trace.h"
#include "plan/pipeline_table.h"
#include "price/machine.h"
#include "replay/step_time.h"

namespace metroplex::forecast {

// The traced step of one rank of each pipeline stage, and the pipeline table. Independent of the machine.
struct TracedRun {
  plan::PipelineTable table;
  std::vector<replay::StepTrace> traces;  // [pp rank]
};
// Ignores request.rank.
TracedRun trace_run(const RankRequest& request);

replay::StepTime price_step(const RankRequest& request, const price::Machine& machine,
                            const ExpertDemand& experts = {});
replay::StepTime price_step(const TracedRun& run, const config::Config& config, const price::Machine& machine,
                            const ExpertDemand& experts = {}, bool events = false);

}  // namespace metroplex::forecast
