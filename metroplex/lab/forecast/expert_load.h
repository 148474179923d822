// The load of expert ranks with replicas (ECHO), for the step time.
#pragma once

#include <vector>

#include "config/config.h"
#include "files/expert_trace.h"
#include "replay/step_time.h"

namespace metroplex::forecast {

// How tokens are distributed over experts. All source ranks route alike.
struct ExpertDemand {
  // Rows of the busiest expert rank / mean without replicas. One expert causes the whole surplus of that rank.
  double imbalance = 1;
  std::vector<std::vector<double>> counts = {};  // instead: tokens per expert, one list per layer and step

  bool is_even() const { return imbalance <= 1 && counts.empty(); }
};

// Takes at most 64 layers and steps of a trace, evenly spaced. Throws base::Error("config") if the trace is empty or
// has other experts or another number of layers than `model`, or a layer without tokens.
ExpertDemand recorded_demand(const files::ExpertTrace& trace, const config::Model& model);

// Mean over the layers and steps of the demand. The imbalance is that after the replica plan of the configuration.
replay::ExpertLoad expert_load(const config::Config& config, const ExpertDemand& demand);

}  // namespace metroplex::forecast
