// Predictions against numbers computed by hand. memory_ranks_test.cpp compares predictions with real ranks.
#include <gtest/gtest.h>

#include "config/load.h"
#include "config/validate.h"
#include "kernels/blocked_attention.h"
#include "forecast/predict.h"

namespace metroplex::test::memory_by_hand_test {
namespace {

using replay::MemoryPrediction;

// 2 layers of 64 features, 4 heads, 16 tokens in each of 2 sequences, vocabulary 128.
config::Config small(const std::string& more, int ranks = 1) {
  config::Config config = config::parse(
      "model: {family: gpt, num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 128}\n"
      "train: {seq_length: 16, micro_batch_size: 2, global_batch_size: 16, train_iters: 10}\n"
      "data: {mock_data: true}\n" +
      more);
  config::check(config, ranks);
  return config::resolved(config, ranks);
}

MemoryPrediction predict(const config::Config& config, int ranks = 1, int rank = 0) {
  return forecast::predict_memory({config, ranks, rank, 128});
}

// 4 + 2 bytes of vectors: norms 2 x 2h, biases 3h + h + 4h + h. Matrices 3h h + h h + 4h h + 4h h.
constexpr int64_t kBlock = 12 * 64 * 64 + 13 * 64, kEnds = 128 * 64 + 16 * 64 + 2 * 64, kModel = 2 * kBlock + kEnds;
constexpr int64_t kTokens = 32;
// 16 T h e + 2 norms x 2 statistics + logsumexp of 4 heads, as in docs/memory.md.
constexpr int64_t block_bytes(int64_t e) { return 16 * kTokens * 64 * e + 4 * kTokens * 4 + kTokens * 4 * 4; }
constexpr int64_t head_bytes(int64_t e) {
  return 2 * kTokens * 64 * e + 2 * kTokens * 4 + kTokens * (128 * e + 4 + 8);
}

TEST(Memory, OneRankInFp32ByHand) {
  const MemoryPrediction prediction = predict(small(""));
  EXPECT_EQ(prediction.use.parameters, 4 * kModel);
  EXPECT_EQ(prediction.use.gradients, 4 * kModel);
  EXPECT_EQ(prediction.use.main_parameters, 0);
  EXPECT_EQ(prediction.use.moments, 8 * kModel);
  // One of 8 microbatches is in flight; the losses of all are held.
  EXPECT_EQ(prediction.use.activations, 2 * block_bytes(4) + head_bytes(4) + 8 * 4);
  EXPECT_EQ(prediction.borders, 0);
  EXPECT_EQ(prediction.use.communication, 0);
  // 16 samples: three integers and a mask per token, one number per sample, and the step number in addition to the
  // number of each microbatch.
  EXPECT_EQ(prediction.batches, 16 * (16 * 28 + 8) + 8 * 8);
  EXPECT_LT(prediction.tables, 10000) << "numbers of the step: 64 rows of rates";
  // The peak is in the backward of the last layer's attention because of its scratch memory. It adds to the tensors
  // held by the previous layer. The last layer still holds its unread tensors: its input, the input of linear_qkv, q,
  // k, v, the result, statistics of a norm, logsumexp. Also held are the losses, a loss gradient and six gradients:
  // of the layer's output, of the sum after attention, of its result, of q, k, v.
  kernels::AttentionShape attention;
  attention.samples = 2, attention.heads = attention.groups = 4;
  attention.head_dim = attention.v_head_dim = 16;
  attention.queries = attention.keys = 16;
  const auto room = kernels::attention_backward_scratch<float>(attention, 1);  // too small for two threads
  const int64_t own = 6 * kTokens * 64 * 4 + 2 * kTokens * 4 + kTokens * 4 * 4, gradients = 6 * kTokens * 64 * 4;
  EXPECT_EQ(prediction.peak, 16 * kModel + block_bytes(4) + own + gradients + room.bytes + 9 * 4 +
                                 prediction.batches + prediction.tables);
}

TEST(Memory, HalfPrecisionIsEighteenBytesAParameterOrFewerByHand) {
  const auto state = [](const std::string& more) {
    const MemoryPrediction prediction = predict(small("precision: {params_dtype: bf16}\n" + more));
    return prediction.use.parameters + prediction.use.gradients + prediction.use.optimizer();
  };
  EXPECT_EQ(state(""), 18 * kModel);
  EXPECT_EQ(state("optim: {store_param_remainders: true}\n"), 16 * kModel);
  EXPECT_EQ(state("optim: {main_params_dtype: bf16, exp_avg_dtype: bf16, exp_avg_sq_dtype: bf16}\n"), 10 * kModel);
}

// Bucket ends are multiples of lcm(4, 128), parameters start at multiples of 64: only the gaps are padding.
TEST(Memory, EveryLevelSharesOneThingMore) {
  const auto at = [](const std::string& strategy) {
    return predict(small("precision: {params_dtype: bf16}\n"
                         "parallel: {data_parallel_sharding_strategy: " +
                             strategy + "}\n",
                         4),
                   4, 1)
        .use;
  };
  const replay::MemoryUse zero = at("no_shard"), one = at("optim"), two = at("optim_grads"),
                          three = at("optim_grads_params");
  const auto near = [](int64_t got, int64_t whole, int64_t parts) {
    EXPECT_NEAR(static_cast<double>(got), static_cast<double>(whole) / static_cast<double>(parts),
                static_cast<double>(whole) / 50);
  };
  EXPECT_EQ(zero.moments, 8 * kModel);
  near(one.moments, 8 * kModel, 4);
  EXPECT_GE(one.parameters, 2 * kModel);
  near(one.parameters, 2 * kModel, 1);
  near(one.gradients, 4 * kModel, 1);
  near(two.gradients, 4 * kModel, 4);
  EXPECT_EQ(two.parameters, one.parameters);
  near(three.parameters, 2 * kModel, 4);
  near(three.gradients, 4 * kModel, 4);
  EXPECT_EQ(one.communication, 0);
  EXPECT_GT(three.communication, two.parameters / 2);  // two units of a model of two blocks
}

// Two stages, eight microbatches, 1F1B: the first stage has two in flight and a stage-boundary tensor for each side.
TEST(Memory, APipelineKeepsWhatIsUnderWay) {
  const config::Config config = small("parallel: {pipeline_model_parallel_size: 2}\n", 2);
  const MemoryPrediction first = predict(config, 2, 0), last = predict(config, 2, 1);
  EXPECT_EQ(first.use.activations - first.borders, 2 * block_bytes(4));
  EXPECT_EQ(last.use.activations - last.borders, block_bytes(4) + head_bytes(4) + 8 * 4);
  const int64_t border = kTokens * 64 * 4;
  EXPECT_EQ(first.borders % border, 0);
  EXPECT_GE(first.borders, border);
  EXPECT_LE(first.borders, 4 * border);
  EXPECT_EQ(first.use.parameters - last.use.parameters, 4 * (16 * 64 - 2 * 64));  // both have the tied table
}

TEST(Memory, FullRecomputeKeepsInputs) {
  const std::string full = "memory: {recompute_granularity: full, recompute_method: ";
  const int64_t input = kTokens * 64 * 4, head = head_bytes(4) + 8 * 4;
  EXPECT_EQ(predict(small(full + "uniform, recompute_num_layers: 1}\n")).use.activations, 2 * input + head);
  EXPECT_EQ(predict(small(full + "uniform, recompute_num_layers: 2}\n")).use.activations, input + head);
  EXPECT_EQ(predict(small(full + "block, recompute_num_layers: 1}\n")).use.activations,
            input + block_bytes(4) + head);
}

}  // namespace
}  // namespace metroplex::test::memory_by_hand_test
