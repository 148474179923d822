// What can be said of a run before it runs: parameters, operations, memory, pipeline, tokens and data, from the
// resolved configuration alone. Nothing is allocated, started or written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/build.h"
#include "files/file_system.h"
#include "preflight/fit.h"
#include "train/run_length.h"
#include "preflight/memory_options.h"

namespace metroplex::preflight {

// Of the largest step.
struct PipelineOutlook {
  int64_t microbatches = 0;
  double formula_bubble_share = 0;
  // By replaying the table, with every rank's operations as its times and free p2p; nothing for tables too large to
  // replay in a moment.
  std::optional<double> bubble_share;
  std::vector<double> live_microbatches;  // by pp rank; empty as above
};

struct DryRun {
  FitRequest request;
  Fit fit;
  std::optional<MemoryOptions> memory_options;  // where it does not fit
  int64_t num_params = 0;                       // of the whole model, a shared one once
  double step_flops = 0;   // of all ranks in the largest step, as they do them (train::RankPrediction)
  double model_flops = 0;  // by the formula of plan/model_flops.h
  // Of models with experts: parameters that take part for one token, and operations of a token by the formula, as
  // they are and as they would be with all parameters.
  int64_t active_params = 0;
  double token_flops_active = 0, token_flops_all = 0;
  int64_t step_tokens = 0;                        // of the largest step
  std::vector<train::ContextExchange> exchanges;  // of all layers, by layer; none without context parallelism
  train::RunLength length;
  PipelineOutlook pipeline;
  std::vector<data::SourceTokens> sources;
  std::vector<std::string> notes;  // what could not be found out, and the like
  std::string refused;             // why a start would be refused for another reason than memory (start_check.h)

  int64_t all_tokens() const { return length.samples * request.config.train.seq_length; }
  // Of a source; nothing where its tokens are not known.
  std::optional<double> epochs(const data::SourceTokens& source) const;
  bool fits() const { return fit.fits(); }
};

// Looks at the data through `disk`.
DryRun dry_run(const FitRequest& request, files::FileSystem& disk,
               const train::Predictor& predict = train::predict_rank);

// What predict says of the whole model on one rank, for one microbatch of one sample: num_params and model_flops
// count.
train::RankPrediction whole_model(const FitRequest& request, const train::Predictor& predict);

// The share by formula (plan/timeline.h) of a step with so many microbatches.
double formula_bubble_share(const config::Config& config, int64_t microbatches);

// The report for a person, without the configuration, and the one for programs with it; docs/memory.md has its keys.
std::string text(const DryRun& run);
std::string json(const DryRun& run);

// The lines for the start of a run: model, pipeline, memory. `most`: bytes of the fullest of all domains, where `fit`
// is of one. Asks `predict` once.
std::vector<std::string> summary(const FitRequest& request, const Fit& fit, int64_t most,
                                 const train::Predictor& predict = train::predict_rank);
// Why a run that does not fit is refused: the table of bytes, and the settings that hold less with what each saves.
std::string refusal(const FitRequest& request, const Fit& fit, const MemoryOptions& options);

}  // namespace metroplex::preflight
