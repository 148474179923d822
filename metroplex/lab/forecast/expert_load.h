// The load of expert ranks with replicas (ECHO), for the step time.
#pragma once

#include "config/config.h"
#include "replay/step_time.h"

namespace metroplex::forecast {

// `imbalance`: rows of the busiest expert rank / mean without replicas. The result has it after the replica plan of
// the configuration, and the fraction of its slots that the plan uses. Assumes that one expert causes the whole
// surplus of the busiest rank, and that all source ranks route alike. Without surplus, no slot is used.
replay::ExpertLoad expert_load(const config::Config& config, double imbalance);

}  // namespace metroplex::forecast
