// Runs whose loss is computed by chunks (memory.loss_chunk_tokens) against one rank that computes it at once: three
// optimizer steps in float64. Losses to 1e-12 relative, parameters to 1e-10 (reasons in verify/verify.h).
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "run/run_layouts.h"
#include "support/everyday.h"

namespace metroplex::run::loss_chunks_ranks_test {
namespace {

struct Layout {
  int64_t tp = 1, pp = 1, vpp = 1, dp = 1, cp = 1;
  const char* schedule = "auto";
  std::vector<std::string> settings = {};
  int64_t ranks() const { return tp * pp * dp * cp; }
};

// Each schedule with weight actions, with and without those of the head; ZeRO; context parallelism.
const std::vector<Layout>& list_layouts() {
  static const std::vector<Layout> kLayouts = {
      {},
      {.dp = 2, .settings = {"parallel.data_parallel_sharding_strategy=optim_grads_params"}},
      {.tp = 2},
      {.tp = 2, .settings = {"parallel.sequence_parallel=true"}},
      {.tp = 2, .pp = 2, .settings = {"parallel.sequence_parallel=true"}},
      {.tp = 2,
       .pp = 2,
       .schedule = "zb_h1",
       .settings = {"parallel.sequence_parallel=true", "parallel.defer_embedding_wgrad_compute=true"}},
      {.pp = 2, .schedule = "zb_h2", .settings = {"parallel.defer_embedding_wgrad_compute=true"}},
      {.pp = 2, .vpp = 2, .schedule = "zb_v"},
      {.pp = 2, .vpp = 2, .schedule = "dualpipe_v", .settings = {"parallel.defer_embedding_wgrad_compute=true"}},
      {.pp = 2, .dp = 2, .settings = {"parallel.data_parallel_sharding_strategy=optim_grads"}},
      {.cp = 2},
      {.tp = 2, .cp = 2, .settings = {"parallel.context_parallel_cut=balanced", "parallel.sequence_parallel=true"}}};
  return kLayouts;
}

std::string to_string(const Layout& layout) {
  std::string name = base::concat("tp ", layout.tp, " pp ", layout.pp, " vpp ", layout.vpp, " dp ", layout.dp, " cp ",
                                  layout.cp, " ", layout.schedule);
  for (const std::string& setting : layout.settings) name += " " + setting;
  return name;
}

void check(const std::string& yaml, const std::vector<int64_t>& chunks) {
  std::map<int64_t, verify::LayoutRun> references;
  size_t number = 0;
  for (const Layout& layout : list_layouts()) {
    const int64_t tokens = chunks[number++ % chunks.size()];
    SCOPED_TRACE(base::concat(to_string(layout), ", chunks of ", tokens));
    std::vector<std::string> settings = layout.settings;
    settings.push_back(base::concat("memory.loss_chunk_tokens=", tokens));
    config::Config config = config::parse(yaml, settings);
    config.parallel.tensor_model_parallel_size = layout.tp;
    config.parallel.pipeline_model_parallel_size = layout.pp;
    config.parallel.virtual_pipeline_model_parallel_size = layout.vpp;
    config.parallel.context_parallel_size = layout.cp;
    config.parallel.pipeline_schedule = config::Choice<config::Schedule>(layout.schedule);
    config.parallel.ddp_bucket_size = 2000;
    expect_equals_single_rank(for_ranks(config, layout.ranks()), layout.ranks(), references);
  }
}

// A microbatch has 16 tokens, with cp 2 a rank has 8. Chunks of 3, 5 and 7 divide none of them.
TEST(LossChunksEqualOneRank, GptWithTiedHead) {
  check(
      "model: {family: gpt, num_layers: 4, hidden_size: 16, num_attention_heads: 4, vocab_size: 50,"
      " make_vocab_size_divisible_by: 8, hidden_dropout: 0.1}\n"
      "train: {seq_length: 8, micro_batch_size: 2, global_batch_size: 8, label_smoothing: 0.1}\n"
      "data: {reset_attention_mask: true, eod_mask_loss: true}\n"
      "optim: {lr: 1.0e-3, clip_grad: 0.5}\n",
      {3, 1, 5, 7, 4});
}

TEST(LossChunksEqualOneRank, LlamaWithMultiTokenPrediction) {
  check(
      "model: {family: llama, num_layers: 4, hidden_size: 16, num_attention_heads: 4, num_query_groups: 2,"
      " ffn_hidden_size: 24, vocab_size: 50, make_vocab_size_divisible_by: 8, mtp_num_layers: 1,"
      " final_logit_softcapping: 2, logits_scaling: 0.5}\n"
      "train: {seq_length: 8, micro_batch_size: 2, global_batch_size: 8, calculate_per_token_loss: true}\n"
      "memory: {recompute_granularity: selective, recompute_modules: [layernorm]}\n"
      "optim: {lr: 1.0e-3, weight_decay: 0.1}\n",
      {5, 3, 7});
}

TEST(LossChunksEqualOneRank, AdaptersOverFrozenHead) {
  check(
      "model: {family: llama, num_layers: 4, hidden_size: 16, num_attention_heads: 4, ffn_hidden_size: 24,"
      " vocab_size: 50, make_vocab_size_divisible_by: 8}\n"
      "train: {seq_length: 8, micro_batch_size: 2, global_batch_size: 8}\n"
      "peft: {lora_rank: 2}\n"
      "optim: {lr: 1.0e-3}\n",
      {6});
}

}  // namespace
}  // namespace metroplex::run::loss_chunks_ranks_test
