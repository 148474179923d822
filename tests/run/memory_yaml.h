// YAML sections for memory tests.
#pragma once

#include <string>

namespace metroplex::test {

inline std::string schedule(const std::string& name) { return "parallel: {pipeline_schedule: " + name + "}\n"; }
inline const std::string kBf16 = "precision: {params_dtype: bf16}\n";
inline std::string zero(const std::string& strategy) {
  return "parallel: {data_parallel_sharding_strategy: " + strategy + "}\n";
}
inline std::string full_recompute(const std::string& rest) {
  return "memory: {recompute_granularity: full, " + rest + "}\n";
}
inline std::string selective_recompute(const std::string& modules) {
  return "memory: {recompute_granularity: selective, recompute_modules: [" + modules + "]}\n";
}

}  // namespace metroplex::test
