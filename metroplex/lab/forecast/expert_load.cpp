#include "forecast/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "config/experts.h"
#include "plan/echo.h"

namespace metroplex::forecast {
namespace {

constexpr size_t kMostSamples = 64;

// All tokens are at most on one rank.
std::vector<double> hot_expert(double imbalance, int ranks, int experts) {
  const double busiest = std::min(imbalance, static_cast<double>(ranks)), local = experts / ranks;
  const double rest = ranks > 1 ? (ranks - busiest) / (ranks - 1) : 1;  // of every expert except the first
  std::vector<double> counts(static_cast<size_t>(experts), rest);
  counts[0] = local * busiest - rest * (local - 1);
  return counts;
}

plan::EchoOptions echo_options(const config::Model& model) {
  plan::EchoOptions options;
  options.planner = model.moe_echo_planner;
  options.eps_bp = std::llround(1e4 * model.moe_echo_eps);
  options.reclaim = model.moe_echo_reclaim;
  return options;
}

struct Placement {
  double imbalance = 1, replicas = 0;
};

Placement place_on_owners(const std::vector<double>& counts, int ranks) {
  const size_t local = counts.size() / static_cast<size_t>(ranks);
  double busiest = 0;
  for (auto first = counts.begin(); first != counts.end(); first += static_cast<std::ptrdiff_t>(local))
    busiest = std::max(busiest, std::accumulate(first, first + static_cast<std::ptrdiff_t>(local), 0.0));
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  return {sum > 0 ? busiest * ranks / sum : 1, 0};
}

Placement place_with_replicas(const std::vector<double>& counts, int ranks, const config::Model& model) {
  constexpr double kRows = 1e6;  // from a rank to an expert of mean load; rounding is negligible
  const auto experts = static_cast<int>(counts.size());
  const double mean = std::accumulate(counts.begin(), counts.end(), 0.0) / experts;
  std::vector<int64_t> rows;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const double count : counts) rows.push_back(mean > 0 ? std::llround(kRows * count / mean) : 0);
  }
  const plan::EchoSizes sizes{ranks, experts, static_cast<int>(model.moe_num_echo_experts) / ranks};
  const plan::EchoPlan plan = plan::plan_echo({rows.data(), sizes}, echo_options(model));
  return {mean > 0 ? static_cast<double>(plan.max_load()) / (kRows * experts) : 1,
          static_cast<double>(plan.num_replicas()) / sizes.replicas()};
}

}  // namespace

ExpertDemand recorded_demand(const files::ExpertTrace& trace, const config::Model& model) {
  MPX_CHECK(trace.head.num_experts == model.num_moe_experts, "config",
            "--expert-trace: num_experts = ", trace.head.num_experts, ": must be model.num_moe_experts (",
            model.num_moe_experts, "); use a trace of this model");
  MPX_CHECK(trace.head.topk == model.moe_router_topk, "config", "--expert-trace: topk = ", trace.head.topk,
            ": must be model.moe_router_topk (", model.moe_router_topk, "); use a trace of this model");
  const size_t expected = config::expert_layers(model).size();
  MPX_CHECK(trace.head.layers.size() == expected, "config", "--expert-trace: ", trace.head.layers.size(),
            " layers: must be the layers with experts (", expected, "); use a trace of this model");
  const size_t layers = trace.head.layers.size(), all = trace.steps.size() * layers;
  MPX_CHECK(all > 0, "config", "--expert-trace: 0 steps: must have at least one; use a longer run");
  ExpertDemand demand;
  const size_t samples = std::min(all, kMostSamples);
  for (size_t sample = 0; sample < samples; ++sample) {
    const size_t number = sample * all / samples;
    std::vector<double>& counts = demand.counts.emplace_back();
    for (int64_t expert = 0; expert < trace.head.num_experts; ++expert)
      counts.push_back(static_cast<double>(trace.tokens(trace.steps[number / layers], number % layers, expert)));
    MPX_CHECK(std::accumulate(counts.begin(), counts.end(), 0.0) > 0, "config",
              "--expert-trace: 0 tokens in iteration ", trace.steps[number / layers].iteration,
              ": must have tokens in each; use another trace");
  }
  return demand;
}

replay::ExpertLoad expert_load(const config::Config& config, const ExpertDemand& demand) {
  const config::Model& model = config.model;
  if (model.num_moe_experts == 0) return {};
  const auto ranks = static_cast<int>(config.parallel.ep());
  const auto experts = static_cast<int>(model.num_moe_experts);
  const std::vector<std::vector<double>> one{hot_expert(demand.imbalance, ranks, experts)};
  const std::vector<std::vector<double>>& all = demand.counts.empty() ? one : demand.counts;
  replay::ExpertLoad mean{0, config::expert_fill(model, config.parallel.etp(), ranks), 0};
  for (const std::vector<double>& counts : all) {
    const Placement placement = model.moe_enable_echo && ranks > 1 ? place_with_replicas(counts, ranks, model)
                                                                   : place_on_owners(counts, ranks);
    mean.imbalance += placement.imbalance / static_cast<double>(all.size());
    mean.replicas += placement.replicas / static_cast<double>(all.size());
  }
  return mean;
}

}  // namespace metroplex::forecast
