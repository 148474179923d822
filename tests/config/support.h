// Helpers for the config tests: a valid configuration, ways to invalidate it, and the message of an error.
#pragma once

#include <algorithm>
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

// Overrides of good(), the one key that the error must name, and words of the rule.
struct Wrong {
  std::vector<std::string> overrides;
  const char* key;
  const char* words;
};

inline std::string described(const std::vector<Violation>& list) { return list.empty() ? "nothing" : message(list); }

// The rules reject it, or the parser does if a value is invalid for its key.
inline void expect_refused(const Wrong& wrong) {
  if (const std::string unread = catch_error([&] { good(wrong.overrides); }); !unread.empty()) {
    EXPECT_NE(unread.find(wrong.key), std::string::npos) << unread;
    EXPECT_NE(unread.find(wrong.words), std::string::npos) << unread;
    return;
  }
  const std::vector<Violation> list = violations(good(wrong.overrides), kWorld);
  const bool blamed = std::any_of(list.begin(), list.end(), [&](const Violation& v) {
    return v.key == wrong.key && v.rule.find(wrong.words) != std::string::npos;
  });
  EXPECT_TRUE(blamed) << wrong.overrides[0] << " should blame " << wrong.key << " with '" << wrong.words << "', got "
                      << described(list);
  for (const Violation& v : list) EXPECT_FALSE(v.rule.empty() || v.fix.empty() || v.value.empty()) << v.key;
}

}  // namespace metroplex::config
