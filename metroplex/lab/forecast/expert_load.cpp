#include "forecast/expert_load.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "config/experts.h"
#include "plan/echo.h"

namespace metroplex::forecast {

replay::ExpertLoad expert_load(const config::Config& config, double imbalance) {
  const config::Model& model = config.model;
  const auto ranks = static_cast<int>(config.parallel.ep());
  if (model.num_moe_experts == 0) return {};
  imbalance = std::min(imbalance, static_cast<double>(ranks));  // all rows on one rank
  const double fill = config::expert_fill(model, config.parallel.etp(), ranks);
  if (!model.moe_enable_echo || ranks < 2 || imbalance <= 1) return {imbalance, fill, 0};
  constexpr double kRows = 1e6;  // from a rank to an expert of mean load; rounding is negligible
  const plan::EchoSizes sizes{ranks, static_cast<int>(model.num_moe_experts),
                              static_cast<int>(model.moe_num_echo_experts) / ranks};
  const double busiest = imbalance, local = sizes.home_experts();
  const double rest = kRows * (ranks - busiest) / (ranks - 1);  // of every expert except the first
  std::vector<int64_t> rows(static_cast<size_t>(ranks) * static_cast<size_t>(sizes.experts), std::llround(rest));
  for (int rank = 0; rank < ranks; ++rank)
    rows[static_cast<size_t>(rank) * static_cast<size_t>(sizes.experts)] =
        std::llround(kRows * local * busiest - rest * (local - 1));
  plan::EchoOptions options;
  options.planner = model.moe_echo_planner;
  options.eps_bp = std::llround(1e4 * model.moe_echo_eps);
  options.reclaim = model.moe_echo_reclaim;
  const plan::EchoPlan plan = plan::plan_echo({rows.data(), sizes}, options);
  return {static_cast<double>(plan.max_load()) / (kRows * local * ranks), fill,
          static_cast<double>(plan.num_replicas()) / sizes.replicas()};
}

}  // namespace metroplex::forecast
