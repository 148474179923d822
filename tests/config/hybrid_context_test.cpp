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

TEST(HybridContextRules, RefusesWhatItCannotBeCombinedWith) {
  constexpr const char* kKey = "parallel.hybrid_context_parallel";
  constexpr const char* kMost = "parallel.max_seqlen_per_dp_cp_rank";
  const std::vector<Wrong> cases = {
      {hybrid({"parallel.pipeline_model_parallel_size=2"}), kKey, "parallel.pipeline_model_parallel_size = 2"},
      {hybrid({"data.reset_attention_mask=false"}), kKey, "without data.reset_attention_mask"},
      {hybrid({"train.micro_batch_size=2"}), kKey, "train.micro_batch_size = 2"},
      {hybrid({"data.dataloader_type=cyclic"}), kKey, "data.dataloader_type = cyclic"},
      {hybrid({"parallel.context_parallel_cut=zigzag"}), kKey, "context_parallel_cut = zigzag"},
      {hybrid({"parallel.context_parallel_token_slack=0.1"}), "parallel.context_parallel_token_slack", kMost},
      {hybrid({"parallel.tensor_model_parallel_size=8", "model.num_attention_heads=8"}), kKey, "an odd number"},
      {hybrid({"parallel.max_seqlen_per_dp_cp_rank=7"}), kMost,
       "a document of train.seq_length = 32 tokens on 4 ranks"},
      {hybrid({"parallel.sequence_parallel=true", "parallel.max_seqlen_per_dp_cp_rank=1"}), kMost,
       "must be 2 or more"},
      {hybrid({"parallel.data_parallel_sharding_strategy=optim_grads"}), kKey,
       "data_parallel_sharding_strategy = optim_grads"},
      {hybrid({"parallel.data_parallel_sharding_strategy=optim_grads_params"}), kKey, "= optim_grads_params"},
      {hybrid({"train.cuda_graph_impl=local"}), kKey, "train.cuda_graph_impl = local"},
      {hybrid({"model.num_moe_experts=4", "model.ffn_hidden_size=64"}), kKey, "model.num_moe_experts = 4"},
      {hybrid({"parallel.cp_comm_type=a2a+p2p", "parallel.hierarchical_context_parallel_sizes=1,1"}),
       "parallel.cp_comm_type", "sizes differ"},
      {hybrid({"parallel.cp_comm_type=a2a"}), "model.num_attention_heads", "4 ranks share the 2 heads"},
      {hybrid({"parallel.cp_comm_type=a2a", "model.softmax_type=learnable", "model.num_attention_heads=8"}),
       "model.softmax_type", "excludes parallel.cp_comm_type"},
      {{"parallel.max_seqlen_per_dp_cp_rank=8"}, kMost, "has no effect without parallel.hybrid_context_parallel"},
  };
  for (const Wrong& wrong : cases) expect_refused(wrong);
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
