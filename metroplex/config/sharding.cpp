#include "config/sharding.h"

namespace metroplex::config {
namespace {

struct Strategy {
  const char* name;
  Sharding sharding;
};
constexpr Strategy kStrategies[] = {
    {"no_shard", {}}, {"optim", {true}}, {"optim_grads", {true, true}}, {"optim_grads_params", {true, true, true}}};

}  // namespace

std::vector<std::string> sharding_strategies() {
  std::vector<std::string> names;
  for (const Strategy& strategy : kStrategies) names.emplace_back(strategy.name);
  return names;
}

std::optional<Sharding> find_sharding(const std::string& strategy) {
  for (const Strategy& known : kStrategies) {
    if (strategy == known.name) return known.sharding;
  }
  return std::nullopt;
}

}  // namespace metroplex::config
