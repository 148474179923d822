// Hybrid context parallelism on layouts of up to 8 ranks against one rank. Documents are packed, and the plan assigns
// a number of ranks to each. Three optimizer steps in float64, some positions masked. Losses to 1e-12 relative,
// parameters to 1e-10 (reasons in verify/verify.h).
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "comm/collectives.h"
#include "config/derived.h"
#include "config/load.h"
#include "support/everyday.h"
#include "step/batch.h"
#include "step/hybrid_batch.h"
#include "forecast/memory_report.h"
#include "run/run_layouts.h"
#include "step/step.h"

namespace metroplex::run::hybrid_context_ranks_test {
namespace {

using config::SequenceCutKind;

struct HybridLayout {
  int64_t tp = 1, cp = 2, dp = 2;
  bool sp = false;
  SequenceCutKind cut = SequenceCutKind::balanced;
  const char* exchange = "p2p";
  config::ShardingStrategy sharding = config::ShardingStrategy::no_shard;
  int64_t most = 0;  // tokens per rank
  int64_t samples = 4;
  int64_t ranks() const { return tp * cp * dp; }
  std::string text() const {
    return base::concat("tp ", tp, sp ? " sp" : "", " cp ", cp, " dp ", dp, " ", config::text_of(cut), " ", exchange,
                        " ", config::text_of(sharding), " most ", most, " samples ", samples);
  }
};

// All dropout options, learned positions, a tied head, a mean over samples.
config::Config gpt() {
  config::Config config = config::parse(
      "model: {family: gpt, num_layers: 2, hidden_size: 32, num_attention_heads: 16, vocab_size: 50, "
      "make_vocab_size_divisible_by: 8, attention_dropout: 0.1, hidden_dropout: 0.1}\n"
      "train: {seq_length: 32, micro_batch_size: 1}\n"
      "optim: {lr: 1.0e-3, clip_grad: 0.5}\n");
  config.data.reset_position_ids = true;
  return config;
}

// Fewer query groups than ranks that share heads, a mean over tokens.
config::Config llama() {
  return config::parse(
      "model: {family: llama, num_layers: 2, hidden_size: 32, num_attention_heads: 16, num_query_groups: 2, "
      "ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8, qk_layernorm: true}\n"
      "train: {seq_length: 32, micro_batch_size: 1, calculate_per_token_loss: true}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
}

// Values with another head size than keys.
config::Config latent() {
  config::Config config = config::parse(
      "model: {family: llama, num_layers: 2, hidden_size: 32, num_attention_heads: 16, ffn_hidden_size: 48,"
      " vocab_size: 50, make_vocab_size_divisible_by: 8, multi_latent_attention: true, q_lora_rank: 12,"
      " kv_lora_rank: 10, qk_head_dim: 4, qk_pos_emb_head_dim: 2, v_head_dim: 3, qk_layernorm: true,"
      " rotary_interleaved: true, attention_dropout: 0.1}\n"
      "train: {seq_length: 32, micro_batch_size: 1}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n");
  return config;
}

// A window shorter than many documents, capped scores.
config::Config windows() {
  config::Config config = llama();
  config.model.num_query_groups = 16;
  config.model.window_size = 3;
  config.model.attn_logit_softcapping = 2;
  config.train.calculate_per_token_loss = false;
  return config;
}

config::Config codegeex() {
  config::Config config = gpt();
  config.model.family = "codegeex";
  return config;
}

config::Config with_layout(config::Config config, const HybridLayout& layout) {
  config::Parallel& parallel = config.parallel;
  parallel.tensor_model_parallel_size = layout.tp;
  parallel.context_parallel_size = layout.cp;
  parallel.sequence_parallel = layout.sp;
  parallel.hybrid_context_parallel = true;
  parallel.max_seqlen_per_dp_cp_rank = layout.most;
  parallel.context_parallel_cut = layout.cut;
  parallel.cp_comm_type = layout.exchange;
  parallel.data_parallel_sharding_strategy = layout.sharding;
  parallel.ddp_bucket_size = 2000;
  config.data.reset_attention_mask = true;
  config.train.global_batch_size = layout.samples;
  return for_ranks(config, layout.ranks());
}

// The plan sets each rank's number of microbatches; exchanges, splits and ZeRO stages alternate.
std::vector<HybridLayout> all_layouts() {
  static constexpr const char* kExchanges[] = {"p2p", "all_gather", "a2a", "p2p,a2a"};
  std::vector<HybridLayout> layouts;
  for (const int64_t tp : {1, 2}) {
    for (const int64_t cp : {1, 2, 4}) {
      for (const int64_t dp : {1, 2, 3, 4}) {
        const int64_t ranks = cp * dp;
        if (tp * ranks > 8 || ranks % 2 == 1) continue;
        for (const int64_t most :
             {int64_t{0}, 32 / ranks * (ranks == 6 ? 3 : 1) + (ranks == 6 ? 1 : 0), int64_t{24}}) {
          for (const int64_t samples : {dp, 3 * dp}) {
            const size_t i = layouts.size();
            layouts.push_back(
                {tp, cp, dp, tp > 1 && i % 3 > 0,
                 i % 5 == 0 ? SequenceCutKind::contiguous : SequenceCutKind::balanced, kExchanges[i % 4],
                 i % 2 == 0 ? config::ShardingStrategy::no_shard : config::ShardingStrategy::optim, most, samples});
          }
        }
      }
    }
  }
  return layouts;
}

void walk(config::Config (*make)(), size_t share) {
  std::map<int64_t, verify::LayoutRun> references;  // by global batch size
  const std::vector<HybridLayout> layouts = all_layouts();
  ASSERT_GT(layouts.size(), 40u);
  for (const HybridLayout& layout : test::sample_cases(layouts, share)) {
    SCOPED_TRACE(layout.text());
    expect_equals_single_rank(with_layout(make(), layout), layout.ranks(), references);
  }
}

TEST(HybridContextEqualsOneRank, GptWithTiedHeadAndDropout) { walk(gpt, 16); }
TEST(HybridContextEqualsOneRank, LlamaWithGroupedQueriesPerToken) { walk(llama, 16); }
TEST(HybridContextEqualsOneRank, LatentAttention) { walk(latent, 16); }
TEST(HybridContextEqualsOneRank, WindowsAndCaps) { walk(windows, 16); }
TEST(HybridContextEqualsOneRank, CodegeexWithItsTopQuery) { walk(codegeex, 16); }

// Precondition of the layouts above: ranks differ in microbatches and groups.
TEST(HybridContext, RanksDifferInMicrobatchesAndGroups) {
  HybridLayout layout;
  layout.most = 8, layout.samples = 6;
  const config::Config config = with_layout(gpt(), layout);
  comm::run_threads(4, topology::RankGrid(4, config.parallel), {}, [&](const comm::World& world) {
    std::set<int64_t> sizes;
    bool differ = false;
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto batches = verify::synthetic_batches(config, world, kVocab, step, at::kDouble);
      for (const nn::Microbatch& batch : batches) sizes.insert(batch.sequence.context_ranks);
      std::set<std::string> counts;
      for (const std::string& count : comm::all_gather_strings(std::to_string(batches.size()), world.groups().world))
        counts.insert(count);
      differ = differ || counts.size() > 1;
    }
    EXPECT_GE(sizes.size(), 2u);
    EXPECT_TRUE(differ);
  });
}

// On any layout every token of the batch counts once, padding never.
TEST(HybridContext, TokensOfTheBatchAreOnOneRankEach) {
  HybridLayout layout;
  layout.tp = 2, layout.sp = true, layout.most = 8, layout.samples = 6;
  const config::Config config = with_layout(gpt(), layout),
                       one = config::resolved(verify::single_rank_config(config), 1);
  double whole = 0;
  comm::run_threads(1, topology::RankGrid(1, one.parallel), {}, [&](const comm::World& alone) {
    for (const nn::Microbatch& batch : verify::synthetic_batches(one, alone, kVocab, 0, at::kDouble))
      whole += batch.mask_sum;
  });
  ASSERT_GT(whole, 0);
  comm::run_threads(8, topology::RankGrid(8, config.parallel), {}, [&](const comm::World& world) {
    double counted = 0, masked = 0;
    for (const nn::Microbatch& batch : verify::synthetic_batches(config, world, kVocab, 0, at::kDouble)) {
      EXPECT_EQ(batch.tokens.size(1) % 2, 0);
      EXPECT_LE(batch.tokens.size(1), 8);
      EXPECT_EQ(batch.sequence.step_samples, 6);
      masked += batch.loss_mask.sum().item<double>();
      counted += batch.sequence.counts_tokens ? batch.mask_sum : 0;
    }
    at::Tensor sums = at::tensor({counted, masked}, at::kDouble);
    comm::all_reduce(sums, world.groups().dp_cp);
    EXPECT_EQ(sums[0].item<double>(), whole);
    EXPECT_EQ(sums[1].item<double>(), whole);
  });
}

TEST(HybridContext, MicrobatchesReachTheRanksThatDoNotRead) {
  HybridLayout layout;
  layout.tp = 2, layout.sp = true, layout.most = 8, layout.samples = 6;
  const config::Config config = with_layout(gpt(), layout);
  comm::run_threads(8, topology::RankGrid(8, config.parallel), {}, [&](const comm::World& world) {
    const auto mine = verify::synthetic_batches(config, world, kVocab, 0, at::kDouble);
    ASSERT_FALSE(mine.empty());
    const comm::Group& group = world.groups().batch;
    const auto told = step::broadcast_batches(group.first() ? mine : std::vector<nn::Microbatch>(),
                                              static_cast<int64_t>(mine.size()), group, at::kDouble);
    ASSERT_EQ(told.size(), mine.size());
    for (size_t m = 0; m < mine.size(); ++m) {
      EXPECT_EQ(told[m].sequence.context_ranks, mine[m].sequence.context_ranks);
      EXPECT_EQ(told[m].sequence.counts_tokens, mine[m].sequence.counts_tokens);
      EXPECT_EQ(told[m].sequence.step_samples, mine[m].sequence.step_samples);
      EXPECT_TRUE(told[m].sequence.rows.equal(mine[m].sequence.rows));
      EXPECT_TRUE(told[m].loss_mask.equal(mine[m].loss_mask));
    }
  });
}

// The prediction assumes that each rank has the most tokens of the longest document. Another rank's thread may free
// p2p messages, which the meter misses (forecast/memory_report.h).
TEST(HybridContext, NoRankHoldsMoreThanPredicted) {
  for (const char* exchange : {"all_gather", "a2a"}) {
    HybridLayout layout;
    layout.most = 12, layout.samples = 6, layout.exchange = exchange;
    const config::Config config = with_layout(llama(), layout);
    comm::run_threads(4, topology::RankGrid(4, config.parallel), {}, [&](const comm::World& world) {
      SCOPED_TRACE(base::concat(exchange, " rank ", world.rank()));
      device::MemoryMeter meter;
      const auto assembly = step::assemble(config, world, kVocab);
      forecast::MemoryReport report(*assembly, meter);
      const auto batches = verify::synthetic_batches(config, world, kVocab, 0, at::kDouble);
      for (int64_t step = 0; step < 12; ++step) {
        if (step > 0) report.begin_step();
        step::train_step(*assembly, {batches, step + 1, step * config.train.global_batch_size, false, {}});
      }
      const forecast::MeasuredMemory measured = report.end_step();
      const replay::MemoryPrediction want =
          forecast::predicted_memory(assembly->process, static_cast<int64_t>(batches.size()));
      EXPECT_LE(measured.use.activations, want.use.activations);
      at::Tensor most = at::tensor({measured.use.activations}, at::kLong);
      comm::all_reduce(most, world.groups().dp_cp, comm::ReduceOp::max);
      // A full microbatch of 12 tokens occurs. The only difference is the extra memory of a whole batch of the
      // longest document.
      EXPECT_GE(most.item<double>(), 0.99 * static_cast<double>(want.use.activations));
      EXPECT_LE(measured.peak, want.peak);
    });
  }
}

}  // namespace
}  // namespace metroplex::run::hybrid_context_ranks_test
