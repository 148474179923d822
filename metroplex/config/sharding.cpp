#include "config/sharding.h"

#include "config/parallel.h"

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

int64_t Sharding::bucket_size(const Parallel& parallel) const {
  if (gathers_units()) return 0;
  return parallel.overlap_grad_reduce || transient_gradients() ? parallel.ddp_bucket_size : 0;
}

}  // namespace metroplex::config
