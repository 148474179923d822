// Helpers for the config tests: a valid configuration, ways to invalidate it, and the message of an error.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "support/error_of.h"

namespace metroplex::config {

inline constexpr int64_t kWorld = 8;

// Valid on 8 ranks: tp 2, pp 2, dp 2.
inline Config good(const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all = {"model.num_layers=8",
                                  "model.hidden_size=64",
                                  "model.num_attention_heads=4",
                                  "model.vocab_size=512",
                                  "parallel.tensor_model_parallel_size=2",
                                  "parallel.pipeline_model_parallel_size=2",
                                  "data.mock_data=true",
                                  "train.seq_length=32",
                                  "train.train_iters=10",
                                  "train.global_batch_size=8"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load("", all);
}

using test::catch_error;

inline std::string described(const std::vector<Violation>& list) { return list.empty() ? "nothing" : message(list); }

}  // namespace metroplex::config
