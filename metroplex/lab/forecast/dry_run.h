// Reports a run before it starts, from the resolved configuration alone: parameters, FLOPs, memory, pipeline, tokens
// and data. Allocates, starts and writes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/build.h"
#include "files/file_system.h"
#include "forecast/fit.h"
#include "step/run_length.h"
#include "forecast/memory_options.h"

namespace metroplex::forecast {

// The pipeline of the largest step.
struct PipelineOutlook {
  int64_t microbatches = 0;
  double formula_bubble_share = 0;
  // The share in a replay of the table with FLOPs as compute times and free p2p. Empty if the table is too large
  // to replay quickly.
  std::optional<double> bubble_share;
  std::vector<double> live_microbatches;  // by pp rank; empty like bubble_share
};

// The run with another pipeline schedule.
struct ScheduleOutlook {
  std::vector<std::string> settings;  // "parallel.pipeline_schedule=zb_h1", in the form of --section.key=value
  PipelineOutlook pipeline;
  int64_t need = 0;  // bytes of the fullest domain
};

struct DryRun {
  FitRequest request;
  Fit fit;
  std::optional<MemoryOptions> memory_options;  // set only if the run does not fit
  int64_t num_params = 0;                       // of the whole model; a shared parameter once
  double step_flops = 0;                        // of all ranks in the largest step, as executed (RankPrediction)
  double model_flops = 0;                       // by the formula of plan/model_flops.h
  // MoE models only: parameters active for one token, and FLOPs per token by the formula, with the active parameters
  // and with all parameters.
  int64_t active_params = 0;
  double token_flops_active = 0, token_flops_all = 0;
  int64_t step_tokens = 0;                 // of the largest step
  std::vector<ContextExchange> exchanges;  // sorted by layer; empty without context parallelism
  step::RunLength length;
  PipelineOutlook pipeline;
  std::vector<ScheduleOutlook> schedules;  // set only by compare_schedules()
  std::vector<data::SourceTokens> sources;
  std::vector<std::string> notes;  // estimates that were not possible, and other notes
  std::string refused;             // error of the start check for reasons other than memory (start_check.h)

  int64_t all_tokens() const { return length.samples * request.config.train.seq_length; }
  // Epochs over `source`; nullopt if its number of tokens is unknown.
  std::optional<double> epochs(const data::SourceTokens& source) const;
  bool fits() const { return fit.fits(); }
};

// Reads the data indices through `disk`.
DryRun dry_run(const FitRequest& request, files::FileSystem& disk, const Predictor& predict = predict_rank);

// Predicts the run with each pipeline schedule that its other settings allow, and with those that are searched
// for the FLOPs of its ranks. Empty for one stage.
std::vector<ScheduleOutlook> compare_schedules(const DryRun& run, const Predictor& predict = predict_rank);

// Predicts the whole model on a single rank, for one microbatch of one sample. Use only num_params and model_flops of
// the result.
RankPrediction whole_model(const FitRequest& request, const Predictor& predict);

double formula_bubble_share(const config::Config& config, int64_t microbatches);

// The human-readable report without the configuration, and the JSON report with it (keys: docs/memory.md).
std::string text(const DryRun& run);
std::string json(const DryRun& run);
// {"model": {"hidden_size": 64, ...}, "parallel": {...}, ...} in one line.
std::string config_json(const config::Config& config);

// Log lines at the start of a run: model, pipeline, memory. `most`: bytes of the fullest memory domain of all, if
// `fit` covers only one. Calls `predict` once.
std::vector<std::string> summary(const FitRequest& request, const Fit& fit, int64_t most,
                                 const Predictor& predict = predict_rank);
// Error message for a run that does not fit: the memory table, and memory options with their savings.
std::string refusal(const FitRequest& request, const Fit& fit, const MemoryOptions& options);

}  // namespace metroplex::forecast
