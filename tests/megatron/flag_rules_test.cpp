// Combinations of Megatron's flags: order, precedence, exclusive pairs, zeros, and spellings of forks.
#include "megatron/flags.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "config/fields.h"
#include "config/support.h"
#include "config/validate.h"

namespace metroplex::megatron::flag_rules_test {

using namespace config;

using Words = std::vector<std::string>;

static Words words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

static const char* const kMinimal =
    "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --lr 1e-3 ";

static Config whole(const std::string& flags) {
  return load("", parse_arguments(words(kMinimal + flags)).assignments);
}

struct FlagCase {
  const char* flags;
  const char* key;
  const char* value;
};

// The field's text; "" for an unknown key.
static std::string field_value(Config config, const std::string& key) {
  for (const Field& field : fields(config)) {
    if (field.key() == key) return to_text(field);
  }
  return "";
}

TEST(MegatronFlags, OrderDoesNotMatter) {
  const auto outcome = [](const std::string& flags) -> std::string {
    std::string text;
    const std::string error = catch_error([&] {
      for (const std::string& assignment : parse_arguments(words(kMinimal + flags)).assignments)
        text += assignment + " ";
    });
    return error.empty() ? text : "refused";
  };
  // Several values for each flag, so that flags that set one key can contradict each other.
  std::ifstream file(METROPLEX_SOURCE_DIR "/tests/megatron/flag_meanings.txt");
  std::map<std::string, Words> by_key;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t bar = line.find(" |", line.find("layout") == std::string::npos ? 0 : line.find("L |"));
    std::istringstream pairs(line.substr(bar + 2));
    for (std::string pair; std::getline(pairs, pair, ';');) {
      pair.erase(0, pair.find_first_not_of(' '));
      if (!pair.empty()) by_key[pair.substr(0, pair.find('='))].push_back(line.substr(0, bar));
    }
  }
  for (const char* more : {"--position-embedding-type learned_absolute", "--position-embedding-type none",
                           "--position-embedding-type yarn"})
    by_key["model.position_embedding_type"].emplace_back(more);
  by_key["memory.recompute_granularity"].emplace_back("--recompute-granularity selective");
  size_t pairs = 0;
  for (const auto& [key, flags] : by_key) {
    for (size_t i = 0; i < flags.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Words first = words(flags[i]), second = words(flags[j]);
        // The last value of a repeated flag counts, as in argparse.
        const bool repeats = std::any_of(first.begin(), first.end(), [&](const std::string& word) {
          return word.starts_with("--") && std::find(second.begin(), second.end(), word) != second.end();
        });
        if (repeats) continue;
        ++pairs;
        EXPECT_EQ(outcome(flags[i] + " " + flags[j]), outcome(flags[j] + " " + flags[i]))
            << flags[i] << " " << flags[j];
      }
    }
  }
  EXPECT_GT(pairs, 50u);
}

TEST(MegatronFlags, FollowMegatronsPrecedence) {
  const std::vector<FlagCase> cases = {
      {"--position-embedding-type rope --no-position-embedding", "model.position_embedding_type", "rope"},
      {"--use-rotary-position-embeddings --no-position-embedding", "model.position_embedding_type", "rope"},
      {"--use-rotary-position-embeddings --position-embedding-type learned_absolute", "model.position_embedding_type",
       "rope"},
      {"--position-embedding-type yarn --yarn-beta-fast 16", "model.rope_type", "yarn"},
      {"--position-embedding-type yarn --yarn-beta-fast 16", "model.beta_fast", "16.0"},
      {"--swiglu --openai-gelu", "model.activation", "silu"},
      {"--swiglu", "model.ffn_hidden_size", "0"},
      {"--quick-geglu", "model.ffn_hidden_size", "256"},
      {"--quick-geglu --ffn-hidden-size 128", "model.ffn_hidden_size", "128"},
      {"--squared-relu --quick-geglu", "model.activation", "squared_relu"},
      {"--squared-relu --quick-geglu", "model.gated_linear_unit", "false"},
      {"--recompute-granularity full --recompute-activations", "memory.recompute_granularity", "selective"},
      {"--bf16 --accumulate-allreduce-grads-in-fp32 --grad-reduce-in-bf16", "precision.main_grads_dtype", "params"},
      {"--fp16 --accumulate-allreduce-grads-in-fp32 --grad-reduce-in-bf16", "precision.main_grads_dtype", "fp32"},
      {"--vocab-size 60000 --tokenizer-type SentencePieceTokenizer", "model.vocab_size", "0"},
      {"--vocab-size 60000 --vocab-file v.json --merge-file m.txt", "model.vocab_size", "0"},
      {"--vocab-size 60000 --tokenizer-type NullTokenizer", "model.vocab_size", "60000"},
      {"--multi-latent-attention --use-rope-scaling", "model.use_rope_scaling", "false"},
      {"--multi-latent-attention --rotary-seq-len-interpolation-factor 4",
       "model.rotary_seq_len_interpolation_factor", "1.0"},
      {"--multi-latent-attention --rotary-percent 0.5", "model.rotary_percent", "1.0"},
      {"--multi-latent-attention --rope-type rope --rotary-percent 0.5", "model.rotary_percent", "0.5"},
      {"--position-embedding-type rope --normalization RMSNorm --swiglu", "model.family", "gpt"},
      {"--ddp-bucket-size 0", "parallel.ddp_bucket_size", "1"},
      {"--train-samples 300_000_000", "train.train_samples", "300000000"},
      {"--adam-eps 1_0.5e-1_0", "optim.adam_eps", "1.05e-09"},
      {"--cpu-offloading-num-layers 0", "memory.offload_activations", "none"},
      {"--skip-train", "train.skip_train", "true"},
      {"--muon-no-split-qkv", "optim.muon_split_qkv", "false"},
      {"--reset-attention-mask", "data.reset_attention_mask", "true"},
      {"--reset-attention-mask --no-create-attention-mask-in-dataloader", "data.reset_attention_mask", "false"},
  };
  for (const auto& [flags, key, value] : cases) { EXPECT_EQ(field_value(whole(flags), key), value) << flags; }
}

TEST(MegatronFlags, PairsThatExcludeEachOther) {
  for (const char* flags :
       {"--squared-relu --swiglu", "--swiglu --quick-geglu", "--bf16 --fp16", "--encoder-num-layers 8",
        "--encoder-seq-length 32", "--group-query-attention --multi-latent-attention",
        "--position-embedding-type learned_absolute --no-position-embedding", "--no-position-embedding",
        "--position-embedding-type none --no-position-embedding",
        "--lr-decay-style WSD --lr-wsd-decay-iters 0 --train-iters 9 --lr-decay-iters 8",
        "--bf16 --accumulate-allreduce-grads-in-fp32 --main-grads-dtype bf16",
        "--norm-epsilon 1e-6 --layernorm-epsilon 1e-5", "--global-batch-size 8 --step-batch-size-schedule 0:8",
        "--zero-stage 2 --use-distributed-optimizer", "--deepspeed --num-experts 4",
        "--checkpoint-activations --recompute-activations", "--no-pipeline-parallel --pipeline-model-parallel-size 2",
        "--multi-latent-attention --rotary-interleaved"}) {
    const std::string error = catch_error([&] { whole(flags); });
    EXPECT_FALSE(error.empty()) << flags;
  }
  EXPECT_NE(catch_error([] {
              parse_arguments({"--no-position-embedding"}, Form::kSingleFlags);
            }).find("use --position-embedding-type none"),
            std::string::npos);
  EXPECT_EQ(
      parse_arguments(
          words(std::string(kMinimal) + "--reset-attention-mask --no-create-attention-mask-in-dataloader"))
          .notes,
      (Words{"--reset-attention-mask: ignored, as Megatron does with --no-create-attention-mask-in-dataloader"}));
  EXPECT_EQ(whole("--norm-epsilon 1e-6 --layernorm-epsilon 1e-6").model.layernorm_epsilon, 1e-6);
  EXPECT_EQ(whole("--num-layers 4 --num-layers 6").model.num_layers, 6);
}

// As Megatron's validate_args and TransformerConfig.
TEST(MegatronFlags, RefusesFlagsWithoutThoseTheyNeed) {
  const std::pair<const char*, const char*> cases[] = {
      {"--overlap-param-gather", "--overlap-param-gather: needs --use-distributed-optimizer or --use-megatron-fsdp"},
      {"--overlap-grad-reduce --overlap-param-gather", "needs --use-distributed-optimizer or --use-megatron-fsdp"},
      {"--use-torch-fsdp2 --overlap-grad-reduce --overlap-param-gather", "needs --use-distributed-optimizer"},
      {"--use-distributed-optimizer --overlap-param-gather", "--overlap-param-gather: needs --overlap-grad-reduce"}};
  for (const auto& [flags, expected] : cases) {
    const std::string error = catch_error([&flags = flags] { whole(flags); });
    EXPECT_NE(error.find(expected), std::string::npos) << flags << ": " << error;
  }
}

// Flags for which 0 and absence are the same in Megatron too.
static const char* const kZeroIsUnset[] = {"--train-iters",
                                           "--train-samples",
                                           "--exit-interval",
                                           "--exit-duration-in-mins",
                                           "--ckpt-step",
                                           "--num-experts",
                                           "--mtp-num-layers",
                                           "--moe-router-num-groups",
                                           "--moe-router-group-topk",
                                           "--moe-router-topk-scaling-factor",
                                           "--n-group",
                                           "--topk-group",
                                           "--routed-scaling-factor",
                                           "--loss-scale",
                                           "--clip-grad",
                                           "--eval-interval",
                                           "--lr-warmup-iters",
                                           "--lr-warmup-samples",
                                           "--lr-warmup-fraction",
                                           "--lr-warmup-init",
                                           "--min-lr",
                                           "--decoupled-min-lr",
                                           "--moe-z-loss-coeff",
                                           "--moe-input-jitter-eps",
                                           "--timing-log-level",
                                           "--label-smoothing",
                                           "--attention-dropout",
                                           "--hidden-dropout",
                                           "--glu-linear-offset",
                                           "--mscale-all-dim",
                                           "--recompute-num-layers",
                                           "--activations-checkpoint-num-layers",
                                           "--checkpoint-num-layers",
                                           "--lr-wsd-decay-iters",
                                           "--lr-wsd-decay-samples",
                                           "--most-recent-k",
                                           "--save-interval",
                                           "--persistent-save-interval",
                                           "--save-retain-interval",
                                           "--attn-logit-softcapping",
                                           "--output-logit-softcapping",
                                           "--moe-num-echo-experts",
                                           "--moe-paged-stash-buffer-size-factor-cpu",
                                           "--fp8-margin"};

TEST(MegatronFlags, ZeroIsNotDerive) {
  Config defaults;
  std::map<std::string, std::string> standard;
  for (const Field& field : fields(defaults)) standard[field.key()] = to_text(field);
  for (const FlagRow& row : flag_table()) {
    const std::string sets = row.sets;
    const bool number =
        row.take == ArgumentCount::kOne && sets.ends_with("=$") && sets.find('.') != std::string::npos;
    const std::string value = number ? standard[sets.substr(0, sets.size() - 2)] : "";
    if (value != "0" && value != "0.0") continue;
    const bool refuses = std::count_if(positive_flags().begin(), positive_flags().end(),
                                       [&](const std::string& flag) { return flag == row.flag; }) == 1;
    const bool unset = std::count_if(std::begin(kZeroIsUnset), std::end(kZeroIsUnset),
                                     [&](const std::string& flag) { return flag == row.flag; }) == 1;
    EXPECT_NE(refuses, unset) << row.flag << ": decide what Megatron does with 0";
  }
  for (const std::string flag : positive_flags()) {
    for (const char* zero : {" 0", " 0.0"}) {
      const std::string error = catch_error([&] { parse_arguments(words(flag + zero), Form::kSingleFlags); });
      EXPECT_NE(error.find(flag + zero + ": must be above 0"), std::string::npos) << error;
    }
  }
  EXPECT_NE(catch_error([] { whole("--save d --save-interval 0"); }).find("must be above 0"), std::string::npos);
}

TEST(MegatronForks, ExactEquivalents) {
  const std::vector<FlagCase> cases = {
      {"--zero-stage 0", "parallel.data_parallel_sharding_strategy", "no_shard"},
      {"--zero-stage 1", "parallel.data_parallel_sharding_strategy", "optim"},
      {"--zero-stage=2", "parallel.data_parallel_sharding_strategy", "optim_grads"},
      {"--deepspeed --zero-stage 3", "parallel.data_parallel_sharding_strategy", "optim_grads_params"},
      {"--deepspeed-activation-checkpointing", "memory.recompute_granularity", "full"},
      {"--deepspeed-activation-checkpointing", "memory.recompute_method", "uniform"},
      {"--checkpoint-activations --checkpoint-num-layers 2", "memory.recompute_num_layers", "2"},
      {"--num-key-value-heads 2", "model.num_query_groups", "2"},
      {"--attention-head-type multiquery", "model.num_query_groups", "1"},
      {"--normalization rmsnorm", "model.normalization", "RMSNorm"},
      {"--ds-sequence-parallel-size 2", "parallel.cp_comm_type", "a2a"},
      {"--enable-shared-expert --shared-moe-ffn-hidden-size 64", "model.moe_shared_expert_gate", "true"},
      {"--use-torch-fsdp2", "parallel.data_parallel_sharding_strategy", "optim_grads_params"},
  };
  for (const auto& [flags, key, value] : cases) { EXPECT_EQ(field_value(whole(flags), key), value) << flags; }
  for (const char* flags : {"--kill-switch-path /x --abort-on-unmet-fused-kernel-constraints --log-level info",
                            "--wandb-project-name x --structured-logs --structured-logs-dir d",
                            "--shape-order BNSD --no-shared-storage --tokenizer-not-use-fast --use-ascend-coc"})
    EXPECT_TRUE(parse_arguments(words(kMinimal + std::string(flags))).notes.empty()) << flags;
  for (const char* flags :
       {"--zero-stage 4", "--zero-stage 1.0", "--deepspeed-config ds.json", "--attention-head-type groupedquery",
        "--glu-activation swiglu", "--no-tie-embed-logits", "--lr-warmup-tokens 1000", "--extra-vocab-size 293",
        "--sliding-window 4096", "--embed-layernorm", "--use-lf-gate", "--norm-dtype RMSNorm",
        "--rope_scaling_factor 2", "--load-state x"})
    EXPECT_FALSE(catch_error([&] { whole(flags); }).empty()) << flags;
}

}  // namespace metroplex::megatron::flag_rules_test
