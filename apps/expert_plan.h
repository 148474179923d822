// metroplex experts --plan: the plan of expert replicas for given counts.
#pragma once

#include <string>
#include <vector>

#include "plan/echo.h"

namespace metroplex::apps {

struct ExpertPlanReport {
  plan::EchoPlan plan;
  std::vector<int64_t> counts;  // [ranks][experts], rows of each source rank to each expert
  std::vector<int64_t> loads;   // [ranks] rows without replicas
  std::vector<int64_t> spare;   // [ranks] rows below the mean
  std::vector<int64_t> spill;   // [experts] rows that the owner sends away to reach the mean
};

// Reads counts [ranks][experts] from JSON text, or from a file with such text or with lines of
// model.moe_echo_dump_dir. From such lines it takes line `line` (from 0). Throws base::Error.
std::vector<std::vector<int64_t>> read_expert_counts(const std::string& text_or_path, int line);

ExpertPlanReport make_expert_plan(const std::vector<std::vector<int64_t>>& counts, int slots,
                                  const plan::EchoOptions& options);

// Loads as bars, replicas with their source ranks, and the destinations of each source rank's rows.
std::string to_text(const ExpertPlanReport& report);
std::string to_json_text(const ExpertPlanReport& report);
std::string to_svg(const ExpertPlanReport& report);

}  // namespace metroplex::apps
