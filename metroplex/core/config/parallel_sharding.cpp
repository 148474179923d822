#include "config/parallel.h"

#include "base/error.h"

namespace metroplex::config {

Sharding sharding_of(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::no_shard:
      return {};
    case ShardingStrategy::optim:
      return {true, false, false};
    case ShardingStrategy::optim_grads:
      return {true, true, false};
    case ShardingStrategy::optim_grads_params:
      return {true, true, true};
  }
  MPX_ASSERT(false, "a sharding strategy without a meaning");
  return {};
}

}  // namespace metroplex::config
