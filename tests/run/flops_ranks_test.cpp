// The operations recorded in a training step sum to the formula of plan/model_flops.h, exactly: the terms are
// integers. If the step computes more than the formula counts, the tests add the difference.
#include "plan/model_flops.h"

#include "run/support.h"

namespace metroplex::test::flops_ranks_test {
namespace {

struct Counter final : device::Recorder {
  double flops = 0;
  int64_t bytes = 0;
  void run(device::Operation operation) override {
    count(operation);
    operation.run();
  }
  void issued(const device::Operation& product) override {
    EXPECT_GT(product.flops, 0) << product.name;
    EXPECT_FALSE(product.run);
    count(product);
  }
  void count(const device::Operation& operation) {
    flops += operation.flops;
    bytes += device::bytes_of(operation);
  }
};

// Matmul flops of all ranks in one step.
double recorded(const config::Config& asked, const TestLayout& layout) {
  const config::Config config = cut(asked, layout);
  std::vector<double> of_ranks(static_cast<size_t>(layout.ranks()));
  run_sharded(config, layout, [&](const comm::World& world) {
    Counter counter;
    const comm::World watched = world.recorded(counter);
    const auto assembly = step::assemble(config, watched, kVocab);
    step::train_step(*assembly, {make_batches(*assembly, 0), 1, 0, false, {}});
    of_ranks[static_cast<size_t>(world.rank())] = counter.flops;
    EXPECT_GT(counter.bytes, 0);
  });
  double sum = 0;
  for (const double flops : of_ranks) sum += flops;
  return sum;
}

double formula(const config::Config& asked, const TestLayout& layout) {
  const config::Config config = cut(asked, layout);
  const int64_t padded =
      config::padded_vocab_size(kVocab, config.model.make_vocab_size_divisible_by, static_cast<int>(layout.tp));
  return plan::step_flops(plan::model_shape(config, padded), {.batch_size = config.train.global_batch_size});
}

// Both matmuls of causal attention in one forward of all layers, each over half the pairs.
double attention(const config::Config& config) {
  const config::Model& m = config.model;
  return 2.0 * static_cast<double>(config.train.global_batch_size * m.num_layers * m.hidden_size) *
         static_cast<double>(config.train.seq_length * config.train.seq_length);
}

// The product of the output layer in one forward on one rank.
double head(const config::Config& config) {
  const config::Model& m = config.model;
  return 2.0 * static_cast<double>(config.train.global_batch_size * config.train.seq_length * m.hidden_size *
                                   config::padded_vocab_size(kVocab, m.make_vocab_size_divisible_by, 1));
}

config::Config fused(config::Config config) {
  config.model.attention_dropout = 0;
  return config;
}

TEST(FlopsRanks, AttentionMakesTheScoresAgainInBackwardFusedAndBlocked) {
  config::Config llama = small_llama();
  llama.model.attention_dropout = 0.1;
  for (const config::Config& config : {fused(small_gpt()), fused(small_llama()), small_gpt(), llama}) {
    for (const TestLayout& layout : {TestLayout{}, TestLayout{.tp = 2, .sp = true}, TestLayout{.tp = 2, .pp = 2}}) {
      SCOPED_TRACE(config.model.family + " tp " + std::to_string(layout.tp));
      EXPECT_EQ(recorded(config, layout), formula(config, layout) + attention(config) / 2);
    }
  }
}

TEST(FlopsRanks, WhatIsMadeAgainCountsAgain) {
  config::Config core = fused(small_gpt()), full = fused(small_gpt());
  core.memory.recompute_granularity = "selective";
  core.memory.recompute_modules = {"core_attn"};
  EXPECT_EQ(recorded(core, {}), formula(core, {}) + attention(core) * 3 / 2);
  full.memory.recompute_granularity = "full";
  full.memory.recompute_method = "uniform";
  full.memory.recompute_num_layers = 1;
  const double layers = formula(full, {}) / 3 - head(full);
  EXPECT_EQ(recorded(full, {}), formula(full, {}) + layers + attention(full) / 2);
}

// The formula, from which MFU follows, counts the logits of the loss once.
TEST(FlopsRanks, LossChunksComputeLogitsAgain) {
  config::Config config = fused(small_gpt());
  const double at_once = formula(config, {});
  config.memory.loss_chunk_tokens = 5;
  EXPECT_EQ(formula(config, {}), at_once);
  EXPECT_EQ(recorded(config, {}), at_once + attention(config) / 2 + head(config));
}

// These types use oneDNN, fp32 gradients, and copies that are added.
TEST(FlopsRanks, TheFormulaHoldsInEveryType) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    SCOPED_TRACE(dtype);
    config::Config config = fused(small_llama());
    config.precision.params_dtype = dtype;
    config.model.hidden_size = 128;
    config.model.num_layers = 1;
    config.train.seq_length = 64;
    config.model.max_position_embeddings = 64;
    EXPECT_EQ(recorded(config, {}), formula(config, {}) + attention(config) / 2);
  }
}

}  // namespace
}  // namespace metroplex::test::flops_ranks_test
