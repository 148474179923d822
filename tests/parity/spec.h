// A golden run: its configuration and its results (the recipe is in golden_index.json).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/config.h"

namespace metroplex::parity {

struct Spec {
  nlohmann::json json;
  config::Config config;  // resolved for `nproc` ranks
  int64_t nproc = 1;
  int64_t vocab = 0, seq = 0, mbs = 0, gbs = 0, iters = 0;
  int64_t mask_last = 0;  // loss mask 0 on the last n positions
  // The loss scale of the replay over the recorded one. A rank divides the loss by the number of its microbatches. So
  // in fp16 another dp has the same gradients, and overflows in the same steps, at another scale.
  double loss_scale_ratio = 1;
};

// Another layout than the recorded one; 0 or empty keeps the run's value. A changed size resets other settings of the
// same axis: vpp of another pp is 1, etp of another tp is tp.
struct OtherLayout {
  int64_t nproc = 0, tp = 0, pp = 0, vpp = 0, ep = 0, etp = 0;
  bool sequence_parallel = false;
  std::string sharding_strategy;
  std::vector<std::string> settings;  // "section.key=value", of keys that keep the function
  std::string cuda_graph_impl;        // empty: none; captured from the third step on
  std::vector<std::string> cuda_graph_modules;

  void apply(config::Parallel& parallel) const;
  void apply(config::Train& train) const;
};

// Throws base::Error for a key that this build does not support, so that no run passes by ignoring a setting. Also
// throws if the other layout would overflow in other steps than the recorded ones.
Spec read_spec(const std::string& path, const OtherLayout& other);

// Value of element `index` (row-major, unsharded) of tensor `name`, before rounding to float.
double recipe_weight(const std::string& name, bool one_dimensional, int64_t index);
int64_t recipe_token(int64_t n, int64_t t, int64_t vocab);

}  // namespace metroplex::parity
