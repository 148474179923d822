// Rejected settings with parallel.hybrid_context_parallel, and the values derived from it.
#include <gtest/gtest.h>

#include "config/derived.h"
#include "config/support.h"

namespace metroplex::config::hybrid_context_test {
namespace {

// Valid on 8 ranks: tp 2, dp 4.
std::vector<std::string> hybrid(std::vector<std::string> spoilt = {}) {
  std::vector<std::string> all = {"parallel.hybrid_context_parallel=true", "parallel.context_parallel_cut=balanced",
                                  "parallel.pipeline_model_parallel_size=1", "data.reset_attention_mask=true"};
  all.insert(all.end(), spoilt.begin(), spoilt.end());
  return all;
}

TEST(HybridContextRules, RunsOnAnEvenNumberOfRanks) {
  EXPECT_EQ(described(violations(good(hybrid()), kWorld)), "nothing");
  EXPECT_EQ(
      described(violations(good(hybrid({"parallel.context_parallel_size=2", "parallel.sequence_parallel=true",
                                        "parallel.max_seqlen_per_dp_cp_rank=9", "parallel.cp_comm_type=all_gather",
                                        "parallel.data_parallel_sharding_strategy=optim"})),
                           kWorld)),
      "nothing");
}

TEST(HybridContextRules, SizesArePowersOfTwoThatDivideTheRanks) {
  EXPECT_EQ(hybrid_context_sizes(1), (std::vector<int>{1}));
  EXPECT_EQ(hybrid_context_sizes(6), (std::vector<int>{1, 2}));
  EXPECT_EQ(hybrid_context_sizes(8), (std::vector<int>{1, 2, 4, 8}));
}

TEST(HybridContextRules, TokensOfARankAreAMultipleAndByDefaultThoseOfItsPart) {
  EXPECT_EQ(most_hybrid_tokens(good(hybrid({"parallel.context_parallel_size=4"}))), 8);
  EXPECT_EQ(most_hybrid_tokens(good(hybrid({"parallel.max_seqlen_per_dp_cp_rank=9"}))), 9);
  EXPECT_EQ(
      most_hybrid_tokens(good(hybrid({"parallel.max_seqlen_per_dp_cp_rank=9", "parallel.sequence_parallel=true"}))),
      8);
  Config config;
  config.parallel.context_parallel_size = 3, config.train.seq_length = 8;
  EXPECT_EQ(most_hybrid_tokens(config), 3);
  config.parallel.sequence_parallel = true, config.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(most_hybrid_tokens(config), 4);
}

TEST(ContextTokens, WithASlackAreRoundedDownToAMultiple) {
  Config config;
  config.parallel.context_parallel_size = 2, config.parallel.context_parallel_token_slack = 0.1;
  config.train.seq_length = 20;
  EXPECT_EQ(most_context_tokens(config), 11);
  config.parallel.sequence_parallel = true, config.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(most_context_tokens(config), 10);
}

}  // namespace
}  // namespace metroplex::config::hybrid_context_test
