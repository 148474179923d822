// The price of a run before it starts: memory, step time, throughput, and the time of the whole run.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "forecast/fit.h"
#include "forecast/step_price.h"
#include "price/machine.h"

namespace metroplex::forecast {

struct PlanRequest {
  FitRequest run;
  price::Machine machine;
  ExpertDemand experts = {};
  // Failures of one device per hour, and seconds of an interruption: detection, restart and load.
  double failures_per_hour = 0, restart_s = 0;
  std::function<void(const std::string& line)> progress = {};  // of a search
};

struct RunPlan {
  Fit fit;
  replay::StepTime time;
  plan::PipelineTable table;
  double step_s = 0;
  double error = 0;        // relative error bar of step_s
  double step_tokens = 0;  // of the largest step
  double model_flops = 0;  // of all ranks in a step (plan/model_flops.h)
  double mfu = 0;          // model_flops / (peak of the parameters' dtype * time); 0 if the peak is unknown
  double run_s = 0;        // all steps without interruptions; 0 if the run has no length
  double goodput = 1;      // fraction of the time that advances the run: failures, restarts, lost steps

  double tokens_per_s() const { return step_tokens / step_s; }
};

// The optimal checkpoint interval is not assumed: steps since the last save are lost, half an interval on average.
RunPlan plan_run(const PlanRequest& request);
// Returns nullopt, before the step is simulated, if the run does not fit. RunPlan::time has no events. `need`
// receives the bytes of the domain that was checked last.
std::optional<RunPlan> plan_fitting_run(const PlanRequest& request, int64_t* need = nullptr);

// The human-readable report, and JSON.
std::string to_text(const PlanRequest& request, const RunPlan& plan);
std::string to_json(const PlanRequest& request, const RunPlan& plan);
// Chrome trace of the simulated step with its memory, one process per pipeline rank.
std::string to_trace(const RunPlan& plan);

}  // namespace metroplex::forecast
