// Traces of the ranks of one configuration, shared by pipeline stages with equal layers.
#pragma once

#include <vector>

#include "forecast/predict.h"
#include "plan/layout.h"

namespace metroplex::forecast {

// The layers of a pipeline rank, without their position in the model unless layers differ. Ranks with equal forms
// have equal traces.
using StageForm = std::vector<plan::StageLayers>;
StageForm stage_form(const config::Config& config, int pp_rank);

// Returns a predictor equal to predict_rank that keeps its traces, and runs passes that ranks share once. Use it for
// one configuration. Not thread-safe.
Predictor make_stage_predictor();

}  // namespace metroplex::forecast
