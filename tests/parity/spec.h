// A golden run: what was trained, and what came of it (the recipe is in golden_index.json).
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "config/config.h"

namespace metroplex::parity {

struct Spec {
  nlohmann::json json;
  config::Config config;  // resolved for `nproc` ranks
  int64_t nproc = 1;
  int64_t vocab = 0, seq = 0, mbs = 0, gbs = 0, iters = 0;
  int64_t mask_last = 0;  // loss mask 0 on the last n positions
};

// Throws base::Error naming a key that this build does not know, so that no run passes by ignoring what it asks for.
// `strategy_override`: another parallel.data_parallel_sharding_strategy than the run's, or empty.
Spec read_spec(const std::string& path, int64_t nproc_override, const std::string& strategy_override);

// Value of element `index` (row-major, unsharded) of tensor `name`, before rounding to float.
double recipe_weight(const std::string& name, bool one_dimensional, int64_t index);
// Token t of sample n.
int64_t recipe_token(int64_t n, int64_t t, int64_t vocab);

}  // namespace metroplex::parity
