// Megatron's spellings: single flags, whole commands, launch scripts.
#include "megatron/flags.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <tuple>

#include <gtest/gtest.h>

#include "config/fields.h"
#include "config/support.h"
#include "config/validate.h"

namespace metroplex::megatron::flags_test {

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

TEST(MegatronFlags, EveryRowSetsAKeyThatExistsAndIsFoundByItsName) {
  const Words keys = all_keys();
  std::set<std::string> seen;
  for (const FlagRow& row : flag_table()) {
    EXPECT_TRUE(seen.insert(row.flag).second) << row.flag;
    std::istringstream pairs(row.sets);
    for (std::string pair; std::getline(pairs, pair, ';');) {
      const std::string key = pair.substr(0, pair.find('='));
      const bool later = key.find('.') == std::string::npos;
      EXPECT_EQ(std::count(keys.begin(), keys.end(), key), later ? 0 : 1) << row.flag;
    }
  }
  for (const HarmlessFlag& flag : harmless_flags()) EXPECT_TRUE(seen.insert(flag.flag).second) << flag.flag;
  EXPECT_GT(seen.size(), 900u);
}

TEST(MegatronFlags, AWholeCommandBringsMegatronsDefaults) {
  const Config config = whole("");
  EXPECT_EQ(config.model.hidden_dropout, 0.1);
  EXPECT_EQ(config.model.attention_dropout, 0.1);
  EXPECT_EQ(config.train.log_interval, 100);
  EXPECT_EQ(config.model.activation, Activation::gelu_tanh);
  EXPECT_FALSE(config.parallel.overlap_grad_reduce);
  EXPECT_EQ(whole("--hidden-dropout 0").model.hidden_dropout, 0.0);
  EXPECT_EQ(whole("--no-bias-gelu-fusion").model.activation, Activation::gelu);
  EXPECT_EQ(whole("--disable-bias-linear").model.activation, Activation::gelu);
}

TEST(MegatronFlags, SingleFlagsSetWhatTheySayAndNothingElse) {
  const Arguments args = parse_arguments(words("--tensor-model-parallel-size 2 --swiglu"), Form::kSingleFlags);
  EXPECT_EQ(args.assignments, (Words{"model.activation=silu", "model.gated_linear_unit=true",
                                     "parallel.tensor_model_parallel_size=2"}));
}

TEST(MegatronFlags, ALlamaCommandIsTheLlamaItDescribes) {
  const Arguments args = parse_arguments(words(
      std::string(kMinimal) +
      "--swiglu --disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights "
      "--group-query-attention --num-query-groups 2 --position-embedding-type rope --rotary-base 500000 "
      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
      "--sequence-parallel --global-batch-size 8 --train-iters 100 --lr-decay-style cosine --min-lr 1e-5 "
      "--lr-warmup-fraction .01 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 "
      "--data-path 0.7 wiki 0.3 code --split 949,50,1 --save out --load out --save-interval 10 --eval-interval 50 "
      "--eval-iters 2 --tensorboard-dir tb --seed 7 --vocab-size 512 --tokenizer-type NullTokenizer "
      "--use-tp-pp-dp-mapping --bf16 --use-distributed-optimizer --recompute-granularity selective "
      "--attention-backend auto --distributed-backend nccl --tp-comm-overlap"));
  EXPECT_TRUE(args.notes.empty());
  const Config config = load("", args.assignments);
  EXPECT_EQ(config.model.family, "llama");
  EXPECT_EQ(config.model.num_query_groups, 2);
  EXPECT_TRUE(config.model.gated_linear_unit);
  EXPECT_FALSE(config.model.add_bias_linear);
  EXPECT_EQ(config.model.rotary_base, 500000.0);
  EXPECT_EQ(config.parallel.vpp(), 2);
  EXPECT_TRUE(config.parallel.overlap_p2p_comm);
  EXPECT_EQ(config.parallel.order, "tp-cp-ep-pp-dp");
  EXPECT_EQ(config.data.data_path, (Words{"0.7", "wiki", "0.3", "code"}));
  EXPECT_EQ(config.optim.lr_warmup_fraction, 0.01);
  EXPECT_EQ(config.precision.params_dtype, ParamsDtype::bf16);
  EXPECT_EQ(config.parallel.sharding().stage(), 1);
  EXPECT_TRUE(config.memory.recomputes("core_attn"));
  EXPECT_EQ(config.run.backend, Backend::automatic);
  EXPECT_NO_THROW(check(config, 8));
}

struct FlagCase {
  const char* flags;
  const char* key;
  const char* value;
};

TEST(MegatronFlags, SpellingsThatNeedMoreThanOneKey) {
  const std::vector<FlagCase> cases = {
      {"--use-rotary-position-embeddings", "model.position_embedding_type", "rope"},
      {"--group-query-attention", "model.num_query_groups", "1"},
      {"--num-query-groups 2", "model.num_query_groups", "0"},
      {"--rampup-batch-size 4 2 100", "train.rampup_batch_size", "4 2 100"},
      {"--step-batch-size-schedule 0:16 2.4B:320", "train.step_batch_size_schedule", "0:16 2.4B:320"},
      {"--split 949, 50, 1", "data.split", "949, 50, 1"},
      {"--split '99,1,0'", "data.split", "99,1,0"},
      {"--vocab-file v.json --merge-file m.txt", "data.tokenizer_type", "bpe"},
      {"--vocab-file v.json --tokenizer-type NullTokenizer", "data.tokenizer_type", "none"},
      {"--num-layers=12", "model.num_layers", "12"},
      {"--override-opt_param-scheduler", "optim.override_opt_param_scheduler", "true"},
      {"--no-data-sharding", "data.data_sharding", "false"},
      {"--no-check-for-nan-in-loss-and-grad", "train.check_for_nan_in_loss", "false"},
      {"--no-check-for-nan-in-loss-and-grad", "precision.check_for_nan_in_grad", "false"},
      {"--tokenizer-type GPT2BPETokenizer", "data.tokenizer_type", "bpe"},
      {"--tokenizer-type Llama2Tokenizer", "data.tokenizer_type", "sentencepiece"},
      {"--distributed-backend gloo", "run.backend", "gloo"},
      {"--experimental-attention-variant gdn --linear-attention-freq 4", "model.experimental_attention_variant",
       "gated_delta_net"},
      {"--experimental-attention-variant gated_delta_net --linear-attention-freq ([1]*3+[0])*3",
       "model.linear_attention_freq", "([1]*3+[0])*3"},
      {"--squared-relu", "model.activation", "squared_relu"},
      {"--openai-gelu", "model.activation", "gelu_tanh"},
      {"--quick-geglu", "model.activation", "quick_gelu"},
      {"--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4",
       "parallel.virtual_pipeline_model_parallel_size", "4"},
      {"--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4 --no-overlap-p2p-communication",
       "parallel.overlap_p2p_comm", "false"},
      {"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ett|(tt|)*2,ttL",
       "parallel.overlap_p2p_comm", "true"},
      {"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --num-layers 6 "
       "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
       "parallel.virtual_pipeline_model_parallel_size", "4"},
  };
  for (const auto& [flags, key, value] : cases) {
    Config config = whole(flags);
    for (const Field& field : fields(config)) {
      if (field.key() != key) continue;
      EXPECT_EQ(to_text(field), value) << flags;
    }
  }
}

TEST(MegatronFlags, OfPrecisionOptimizerShardingAndMemory) {
  const std::string vpp2 = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 ";
  const std::string gathers = vpp2 + "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather";
  const std::vector<std::tuple<std::string, const char*, const char*>> cases = {
      {"--bf16", "precision.params_dtype", "bf16"},
      {"--bf16", "precision.main_grads_dtype", "auto"},
      {"--bf16 --grad-reduce-in-bf16", "precision.main_grads_dtype", "params"},
      {"--bf16 --main-grads-dtype bf16", "precision.main_grads_dtype", "params"},
      {"--fp16", "precision.params_dtype", "fp16"},
      {"--fp16", "precision.main_grads_dtype", "params"},
      {"--fp16 --main-grads-dtype fp32", "precision.main_grads_dtype", "params"},
      {"--fp16 --accumulate-allreduce-grads-in-fp32", "precision.main_grads_dtype", "fp32"},
      {"--fp32-residual-connection", "precision.fp32_residual_connection", "true"},
      {"--bf16 --grad-reduce-in-bf16 --use-distributed-optimizer --ddp-reduce-scatter-with-fp32-accumulation",
       "parallel.reduce_scatter_with_fp32_accumulation", "true"},
      {"--bf16 --use-distributed-optimizer --ddp-reduce-scatter-with-fp32-accumulation",
       "parallel.reduce_scatter_with_fp32_accumulation", "false"},
      {"--bf16 --grad-reduce-in-bf16 --ddp-reduce-scatter-with-fp32-accumulation",
       "parallel.reduce_scatter_with_fp32_accumulation", "false"},
      {"--bf16 --fp8-format hybrid --use-distributed-optimizer --fp8-param-gather", "precision.fp8_param_gather",
       "true"},
      {"--bf16 --fp8-format e4m3 --fp8-recipe blockwise --use-distributed-optimizer --fp8-param-gather",
       "precision.fp8_param_gather", "true"},
      {"--bf16 --fp8-format hybrid --fp8-param-gather", "precision.fp8_param_gather", "false"},
      {"--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --use-distributed-optimizer --fp8-param-gather",
       "precision.fp8_param_gather", "false"},
      {"--bf16 --output-logit-dtype fp32", "precision.output_logit_dtype", "fp32"},
      {"--bf16 --output-logit-dtype bf16", "precision.output_logit_dtype", "params"},
      {"--fp16 --output-logit-dtype fp32", "precision.output_logit_dtype", "fp32"},
      {"--output-logit-dtype fp32", "precision.output_logit_dtype", "params"},
      {"--loss-scale 1024", "precision.loss_scale", "1024.0"},
      {"--initial-loss-scale 65536", "precision.initial_loss_scale", "65536.0"},
      {"--min-loss-scale 2", "precision.min_loss_scale", "2.0"},
      {"--loss-scale-window 20", "precision.loss_scale_window", "20"},
      {"--hysteresis 3", "precision.hysteresis", "3"},
      {"--check-for-large-grads", "precision.check_for_large_grads", "true"},
      {"--grad-norm-skip-threshold 5", "precision.grad_norm_skip_threshold", "5.0"},
      {"--recompute-granularity full --recompute-method uniform", "memory.recompute_num_layers", "1"},
      {"--recompute-granularity full --recompute-method block --recompute-num-layers 30",
       "memory.recompute_num_layers", "8"},
      {"--recompute-granularity full --recompute-method block --recompute-num-layers 30 "
       "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
       "memory.recompute_num_layers", "2"},
      {"--recompute-granularity full --recompute-method block --recompute-num-layers 3",
       "memory.recompute_num_layers", "3"},
      {"--optimizer lion --lion-beta1 0.8", "optim.lion_beta1", "0.8"},
      {"--optimizer muon", "optim.muon_momentum", "0.9"},
      {"--optimizer dist_muon", "optim.optimizer", "muon"},
      {"--optimizer dist_muon", "parallel.data_parallel_sharding_strategy", "optim"},
      {"--lr-decay-style WSD --lr-wsd-decay-iters 0 --train-iters 9", "optim.lr_decay_style", "constant"},
      {"--lr-decay-style WSD --lr-wsd-decay-samples 0 --train-samples 1_0 --lr-decay-samples 10",
       "optim.lr_decay_style", "constant"},
      {"--lr-decay-style cosine --lr-wsd-decay-iters 0 --train-iters 9", "optim.lr_decay_style", "cosine"},
      {"--lr-decay-style WSD --lr-wsd-decay-iters 0 --lr-wsd-decay-samples 4 --train-samples 9",
       "optim.lr_decay_style", "WSD"},
      {"--optimizer muon --muon-nesterov", "optim.muon_use_nesterov", "true"},
      {"--tokenizer-type PretrainedFromHF --tokenizer-name-or-path d", "data.tokenizer_type", "bpe"},
      {"--tokenizer-type PretrainedFromHF --vocab-size 7 --padded-vocab-size 500", "model.vocab_size", "500"},
      {"--padded-vocab-size 500 --make-vocab-size-divisible-by 64", "model.make_vocab_size_divisible_by", "1"},
      {"--padded-vocab-size 300 --vocab-size 100 --tensor-model-parallel-size 2",
       "model.make_vocab_size_divisible_by", "150"},
      {"--padded-vocab-size 300 --vocab-size 100", "model.vocab_size", "100"},
      {"--window-size 8,8", "model.window_size", "8"},
      {"--window-size -1,-1", "model.window_size", "-1"},
      {"--num-query-groups 0", "model.num_query_groups", "0"},
      {"--no-rope-freq 0", "model.num_layers", "8"},
      {"--num-experts 4 --moe-router-num-groups 2", "model.moe_router_num_groups", "0"},
      {"--num-layers-per-virtual-pipeline-stage 8", "parallel.virtual_pipeline_model_parallel_size", "1"},
      {"--tokenizer-type PretrainedFromHF --tokenizer-model m --tokenizer-name-or-path d", "data.tokenizer_model",
       "d"},
      {"--tokenizer-type Llama2Tokenizer --tokenizer-model m --tokenizer-name-or-path d", "data.tokenizer_model",
       "m"},
      {"--position-embedding-type rotary", "model.position_embedding_type", "rope"},
      {"--position-embedding-type absolute", "model.position_embedding_type", "learned_absolute"},
      {"--num_layers 8", "model.add_bias_linear", "false"},
      {"--num_layers 8", "model.activation", "gelu"},
      {"--num_layers 8 --use_bias", "model.add_bias_linear", "true"},
      {"--num-layers 8", "model.add_bias_linear", "true"},
      {"--seq_length 32", "model.add_bias_linear", "true"},
      {"--context-parallel-algo megatron_cp_algo", "parallel.cp_comm_type", "p2p"},
      {"--decoupled-lr 2e-3 --decoupled-min-lr 1e-3", "optim.decoupled_min_lr", "0.001"},
      {"--decoupled-lr 2e-3 --min-lr 1e-4", "optim.decoupled_min_lr", "0.0001"},
      {"--decoupled-lr 2e-3 --decoupled-min-lr 0 --min-lr 1e-4", "optim.decoupled_min_lr", "0.0"},
      {"--min-lr 1e-4", "optim.decoupled_min_lr", "0.0"},
      {"--apply-wd-to-qk-layernorm", "optim.apply_wd_to_qk_layernorm", "true"},
      {"--no-weight-decay-cond-type apply_wd_to_qk_layernorm", "optim.apply_wd_to_qk_layernorm", "true"},
      {"--main-params-dtype fp32", "optim.main_params_dtype", "fp32"},
      {"--exp-avg-dtype bf16", "optim.exp_avg_dtype", "bf16"},
      {"--exp-avg-sq-dtype fp8", "optim.exp_avg_sq_dtype", "8bit"},
      {"--bf16 --use-precision-aware-optimizer", "optim.store_param_remainders", "true"},
      {"--fp16 --use-precision-aware-optimizer", "optim.store_param_remainders", "false"},
      {"--optimizer-cpu-offload", "optim.optimizer_cpu_offload", "true"},
      {"", "parallel.data_parallel_sharding_strategy", "no_shard"},
      {"--use-distributed-optimizer", "parallel.data_parallel_sharding_strategy", "optim"},
      {"--use-distributed-optimizer --use-megatron-fsdp", "parallel.data_parallel_sharding_strategy",
       "optim_grads_params"},
      {"--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
       "parallel.data_parallel_sharding_strategy", "optim_grads"},
      {"--data-parallel-sharding-strategy optim_grads", "parallel.data_parallel_sharding_strategy", "no_shard"},
      {"--num-distributed-optimizer-instances 2", "parallel.num_distributed_optimizer_instances", "2"},
      {"--use-distributed-optimizer", "parallel.overlap_param_gather", "false"},
      {"--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", "parallel.align_param_gather",
       "false"},
      {"--use-megatron-fsdp --overlap-param-gather", "parallel.overlap_param_gather", "true"},
      {"--zero-stage 1 --overlap-grad-reduce --overlap-param-gather", "parallel.overlap_param_gather", "true"},
      {gathers, "parallel.overlap_param_gather", "true"},
      {gathers, "parallel.align_param_gather", "true"},
      {gathers + " --no-align-param-gather", "parallel.align_param_gather", "false"},
      {"--recompute-activations", "memory.recompute_granularity", "selective"},
      {"--recompute-granularity full --recompute-method block --recompute-num-layers 2", "memory.recompute_method",
       "block"},
      {"--recompute-granularity full --recompute-method block --recompute-num-layers 2",
       "memory.recompute_num_layers", "2"},
      {"--recompute-activations --recompute-modules core_attn moe_act layernorm", "memory.recompute_modules",
       "[core_attn, moe_act, layernorm]"},
      {"--distribute-saved-activations", "memory.distribute_saved_activations", "true"},
      {"--fine-grained-activation-offloading", "memory.offload_activations", "host"},
      {"--cpu-offloading", "memory.offload_activations", "host"},
      {"--deterministic-mode", "run.deterministic_mode", "true"},
  };
  for (const auto& [flags, key, value] : cases) {
    Config config = whole(flags);
    for (const Field& field : fields(config)) {
      if (field.key() != key) continue;
      EXPECT_EQ(to_text(field), value) << flags;
    }
    EXPECT_NO_THROW(help(key));
  }
  EXPECT_NO_THROW(check(whole(gathers + " --bf16 --use-precision-aware-optimizer --mock-data --vocab-size 512 "
                                        "--global-batch-size 8 --train-iters 5"),
                        8));
}

TEST(MegatronFlags, SingleOnesOfShardingSetTheStrategyAlone) {
  const auto single = [](const std::string& flags) {
    return parse_arguments(words(flags), Form::kSingleFlags).assignments;
  };
  EXPECT_EQ(single("--use-distributed-optimizer"), (Words{"parallel.data_parallel_sharding_strategy=optim"}));
  EXPECT_EQ(single("--data-parallel-sharding-strategy optim_grads"),
            (Words{"parallel.data_parallel_sharding_strategy=optim_grads"}));
  EXPECT_EQ(single("--align-param-gather"), (Words{"parallel.align_param_gather=true"}));
  EXPECT_EQ(single("--fp16"), (Words{"precision.params_dtype=fp16"}));
  EXPECT_EQ(single("--use-precision-aware-optimizer"), (Words{}));
}

TEST(MegatronFlags, FixedOnesAcceptOneValue) {
  for (const char* flags : {"--muon-tp-mode duplicated", "--spec local",
                            "--vocab-size 100 --null-tokenizer-eod-id 99", "--start-eval-at-iter 0"}) {
    EXPECT_TRUE(parse_arguments(words(std::string(kMinimal) + flags)).notes.empty()) << flags;
  }
  const std::vector<std::pair<const char*, const char*>> refused = {
      {"--muon-tp-mode blockwise", "expected distributed, duplicated"},
      {"--spec megatron.x y", "--spec megatron.x y: not implemented"},
      {"--vocab-size 100 --null-tokenizer-eod-id 3", "--null-tokenizer-eod-id 3: not implemented"},
      {"--null-tokenizer-eod-id 3", "--null-tokenizer-eod-id 3: not implemented"},
      {"--start-eval-at-iter 5", "--start-eval-at-iter 5: not implemented"}};
  for (const auto& [flags, text] : refused) {
    const std::string error = catch_error([flags = flags] { whole(flags); });
    EXPECT_NE(error.find(text), std::string::npos) << flags << "\n" << error;
  }
}

TEST(MegatronFlags, QueryGroupsBesideAFileAreTheGroupsAndInAWholeCommandNeedTheirSwitch) {
  EXPECT_EQ(parse_arguments(words("--num-query-groups 4"), Form::kSingleFlags).assignments,
            (Words{"model.num_query_groups=4"}));
  const Arguments alone = parse_arguments(words(std::string(kMinimal) + "--num-query-groups 2"));
  ASSERT_EQ(alone.notes.size(), 1u);
  EXPECT_NE(alone.notes[0].find("--num-query-groups 2: ignored"), std::string::npos);
}

TEST(MegatronFlags, RefusedOnesAreInOneError) {
  const std::string flags =
      "--moe-n-hash-layers 8 --fantasy-knob 3 4 --use-rms-norm --lr-warmup-iter 5 --batch-size 4 --swiglu yes "
      "--tokenizer-type TikTokenizer --wandb-project x --muon-tp-mode blockwise --num-layers";
  const std::vector<const char*> lines = {
      "\n  --moe-n-hash-layers 8: not implemented (routes by a hash of the token)",
      "\n  --fantasy-knob 3 4: unknown\n",
      "\n  --use-rms-norm: use --normalization RMSNorm\n",
      "\n  --lr-warmup-iter 5: unknown; did you mean --lr-warmup-iters?\n",
      "\n  --batch-size 4: removed from Megatron; use --micro-batch-size\n",
      "\n  --tokenizer-type TikTokenizer: this tokenizer is not implemented; expected NullTokenizer",
      "\n  --muon-tp-mode blockwise: not implemented",
      "--ignore-unknown-flags"};
  for (const Form form : {Form::kWholeCommand, Form::kSingleFlags}) {
    const std::string error = catch_error([&] { parse_arguments(words(flags), form); });
    for (const char* line : lines) EXPECT_NE(error.find(line), std::string::npos) << line << "\n" << error;
    EXPECT_EQ(error.find("wandb"), std::string::npos) << error;
  }
  const Arguments ignored = parse_arguments(words(std::string(kMinimal) + "--moe-n-hash-layers 8 --fantasy-knob 3"),
                                            Form::kWholeCommand, RefusalMode::kNote);
  ASSERT_EQ(ignored.notes.size(), 2u);
  EXPECT_EQ(ignored.notes[1], "ignored: --fantasy-knob 3: unknown");
  EXPECT_EQ(load("", ignored.assignments).model.num_layers, 8);
}

TEST(MegatronFlags, MisspeltOnesNameTheNearest) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"--lr-warmup-iter 5", "--lr-warmup-iters"},
      {"--adam-bata2 0.9", "--adam-beta2"},
      {"--globl-batch-size 8", "--global-batch-size"},
      {"--weigth-decay 0", "--weight-decay"},
      {"--train_iter 5", "--train-iters"},
      {"--clip-gard 1", "--clip-grad"},
      {"--sequence-paralel", "--sequence-parallel"},
      {"--wandb-projet x", "--wandb-project"},
      {"--tensor-parallel-size 2", "--tensor-model-parallel-size"}};
  for (const auto& [flags, name] : cases) {
    const std::string error = catch_error([flags = flags] { whole(flags); });
    EXPECT_NE(error.find(std::string("unknown; did you mean ") + name + "?"), std::string::npos) << flags << "\n"
                                                                                                 << error;
  }
  for (const char* flag : {"--apply-layernorm-rms", "--pipe-parallel-size", "--moe-expert-parallel-size",
                           "--moe-loss-coeff", "--keep-last", "--sparsity", "--task", "--model-type-hf",
                           "--norm-dtype", "--fix-router", "--load-state", "--embed-layernorm"})
    EXPECT_EQ(catch_error([&] { whole(flag); }).find("did you mean"), std::string::npos) << flag;
}

TEST(MegatronFlags, TakeOneExchangeALayer) {
  EXPECT_EQ(whole("--context-parallel-size 2 --cp-comm-type p2p a2a").parallel.cp_comm_type, "p2p,a2a");
  EXPECT_EQ(whole("--context-parallel-size 2").parallel.cp_comm_type, "p2p");
}

TEST(MegatronFlags, OfExperts) {
  const std::vector<FlagCase> cases = {
      {"--num-experts 8", "model.num_moe_experts", "8"},
      {"--moe-layer-freq ([1]*3+[0]*1)*2", "model.moe_layer_freq", "([1]*3+[0]*1)*2"},
      {"--moe-router-load-balancing-type aux_loss seq_aux_loss", "model.moe_router_load_balancing_type",
       "aux_loss,seq_aux_loss"},
      {"--moe-aux-loss-coeff 1e-2 0", "model.moe_aux_loss_coeff", "1e-2,0"},
      {"--moe-aux-loss-coeff 0.01", "model.moe_aux_loss_coeff", "0.01"},
      {"--moe-token-dispatcher-type allgather", "model.moe_token_dispatcher_type", "allgather"},
      {"--moe-token-dispatcher-type flex", "model.moe_token_dispatcher_type", "alltoall"},
      {"--moe-layer-recompute", "memory.recompute_modules", "[core_attn, moe]"},
      {"--moe-layer-recompute", "memory.recompute_granularity", "selective"},
      {"--moe-layer-recompute --recompute-modules layernorm", "memory.recompute_modules", "[layernorm, moe]"},
      {"--moe-expert-capacity-factor -1.0", "model.moe_expert_capacity_factor", "-1.0"},
      {"--expert-model-parallel-size 4", "parallel.expert_model_parallel_size", "4"},
      {"", "model.moe_token_dispatcher_type", "auto"},
      {"", "model.moe_router_topk", "2"},
  };
  for (const auto& [flags, key, value] : cases) {
    Config config = whole(flags);
    for (const Field& field : fields(config)) {
      if (field.key() == key) { EXPECT_EQ(to_text(field), value) << flags; }
    }
  }
  const Arguments flex = parse_arguments(words("--moe-token-dispatcher-type flex"), Form::kSingleFlags);
  EXPECT_EQ(flex.assignments, (Words{"model.moe_token_dispatcher_type=alltoall"}));
  EXPECT_NE(catch_error([] { whole("--moe-router-score-function tanh"); }).find("--moe-router-score-function"),
            std::string::npos);
  EXPECT_NE(catch_error([] { whole("--moe-token-dispatcher-type deep"); }).find("--moe-token-dispatcher-type"),
            std::string::npos);
  EXPECT_NE(catch_error([] { whole("--moe-layer-recompute --recompute-granularity full"); }).find("excludes"),
            std::string::npos);
}

TEST(MegatronFlags, RefuseOtherAttentionVariants) {
  for (const char* variant : {"gdn2", "dsa"}) {
    const std::string error = catch_error([&] { whole(std::string("--experimental-attention-variant ") + variant); });
    EXPECT_NE(error.find("--experimental-attention-variant"), std::string::npos) << error;
  }
}

TEST(MegatronFlags, OfGraphCaptureInAllSpellings) {
  const std::vector<std::tuple<std::string, CudaGraphImpl, Words>> cases = {
      {"", CudaGraphImpl::none, {}},
      {"--cuda-graph-impl none", CudaGraphImpl::none, {}},
      {"--cuda-graph-modules attn", CudaGraphImpl::none, {}},
      {"--cuda-graph-impl local --cuda-graph-modules attn mlp", CudaGraphImpl::local, {"attn", "mlp"}},
      {"--cuda-graph-impl local --cuda-graph-modules attn,mlp", CudaGraphImpl::local, {"attn", "mlp"}},
      {"--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router",
       CudaGraphImpl::transformer_engine,
       {"attn", "moe_router"}},
      {"--cuda-graph-impl=full_iteration --optimizer-cuda-graph", CudaGraphImpl::full_iteration, {}},
      {"--enable-cuda-graph", CudaGraphImpl::local, {}},
      {"--enable-cuda-graph --cuda-graph-scope full", CudaGraphImpl::local, {}},
      {"--enable-cuda-graph --cuda-graph-scope full_iteration", CudaGraphImpl::full_iteration, {}},
      {"--cuda-graph-scope full_iteration", CudaGraphImpl::full_iteration, {}},
      {"--external-cuda-graph --cuda-graph-scope attn", CudaGraphImpl::transformer_engine, {"attn"}},
      {"--cuda-graph-impl local --cuda-graph-modules full_iteration_inference", CudaGraphImpl::local, {}},
  };
  for (const auto& [flags, impl, modules] : cases) {
    const Train train = whole(flags).train;
    EXPECT_EQ(train.cuda_graph_impl, impl) << flags;
    EXPECT_EQ(train.cuda_graph_modules, modules) << flags;
    EXPECT_EQ(train.cuda_graph_warmup_steps, 3) << flags;
  }
  EXPECT_EQ(whole("--cuda-graph-impl local --cuda-graph-warmup-steps 11").train.cuda_graph_warmup_steps, 11);
  const auto single = [](const char* flags) { return parse_arguments(words(flags), Form::kSingleFlags).assignments; };
  EXPECT_EQ(single("--cuda-graph-modules attn"), (Words{"train.cuda_graph_modules=[\"attn\"]"}));
  EXPECT_EQ(single("--enable-cuda-graph"), (Words{"train.cuda_graph_impl=local"}));
  EXPECT_EQ(single("--optimizer-cuda-graph --te-rng-tracker --cuda-graph-use-single-mempool"), (Words{}));
  const std::vector<std::pair<const char*, const char*>> refused = {
      {"--enable-cuda-graph --external-cuda-graph", "--enable-cuda-graph true: excludes external_cuda_graph"},
      {"--enable-cuda-graph --cuda-graph-impl local", "--enable-cuda-graph true: excludes cuda_graph_impl = local"},
      {"--cuda-graph-impl local --cuda-graph-modules attn --cuda-graph-scope mlp", "--cuda-graph-modules"},
      {"--cuda-graph-impl local --cuda-graph-modules full attn", "full: must be the only module"},
      {"--cuda-graph-impl transformer_engine --cuda-graph-scope full_iteration", "excludes cuda_graph_impl"},
      {"--cuda-graph-impl whole", "--cuda-graph-impl: train.cuda_graph_impl = whole: expected one of none"},
      {"--cuda-graph-impl local --cuda-graph-modules", "takes 1 or more values"},
      {"--cuda-graph-warmup-steps few", "train.cuda_graph_warmup_steps = few: expected an integer"},
  };
  for (const auto& [flags, text] : refused) {
    const std::string error = catch_error([flags = flags] { whole(flags); });
    EXPECT_NE(error.find(text), std::string::npos) << flags << "\n" << error;
  }
}

TEST(MegatronPrograms, OtherModelsAreToldApart) {
  for (const char* program : {"pretrain_bert.py", "/opt/megatron/pretrain_t5.py", "../../pretrain_vlm.py",
                              "train_rl.py", "examples/multimodal/train.py", "pretrain_vlm.py", "pretrain_yuan.py"})
    EXPECT_TRUE(is_other_model(program)) << program;
  for (const char* program : {"pretrain_gpt.py", "/home/bert/pretrain_gpt.py", "my_train.py", "/x/finetune.py"})
    EXPECT_FALSE(is_other_model(program)) << program;
  EXPECT_TRUE(is_codegeex("codegeex/megatron/tools/pretrain_codegeex.py"));
  EXPECT_FALSE(is_codegeex("codegeex/pretrain_gpt.py"));
}

TEST(MegatronFlags, RefusesWithTheFlagNamed) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"--num-layers", "--num-layers takes 1 value, got 0"},
      {"--num-layers four", "--num-layers: model.num_layers = four: expected an integer"},
      {"--lr --min-lr 1", "--lr takes 1 value"},
      {"--swiglu=1", "--swiglu takes no value"},
      {"--rampup-batch-size 1 2", "takes 3 values"},
      {"--data-path --split 1", "--data-path takes 1 or more values"},
      {"--swiglu yes", "'yes' does not belong to a flag"},
      {"--batch-size 4", "--batch-size 4: removed from Megatron; use --micro-batch-size"},
      {"--bf16 --fp16", "mutually exclusive"},
      {"--main-grads-dtype fp16", "expected fp32 or bf16"},
      {"--output-logit-dtype fp16", "expected bf16 or fp32"},
      {"--loss-scale big", "precision.loss_scale = big: expected a number"},
      {"--no-weight-decay-cond-type all", "expected apply_wd_to_qk_layernorm"},
      {"--vocab-size 100 --padded-vocab-size 100", "must be above --vocab-size"},
      {"--train-iters 9 --lr-warmup-fraction 0 --lr-warmup-iters 5",
       "--lr-warmup-fraction and --lr-warmup-iters are mutually exclusive"},
      {"--train-iters 9 --train-samples 0", "--train-iters and --train-samples are mutually exclusive"},
      {"--qk-l2-norm --no-rope-freq 4", "--qk-l2-norm: excludes --no-rope-freq"},
      {"--position-embedding-type rope --rope-type yarn", "--rope-type yarn: needs --multi-latent-attention"},
      {"--context-parallel-algo hybrid_cp_algo", "expected megatron_cp_algo or ulysses_cp_algo"},
      {"--window-size 128,x", "expected two numbers separated by a comma"},
      {"--window-size 128", "expected two numbers separated by a comma"},
      {"--model-parallel-size 4", "use --tensor-model-parallel-size"},
      {"--glu-activation swiglu", "use --swiglu and --ffn-hidden-size"},
      {"--lr-decay-style WSD --lr-wsd-decay-iters 0 --train-iters 9 --lr-decay-iters 5",
       "--lr-wsd-decay-iters 0: needs --lr-decay-iters"},
      {"--num-virtual-stages-per-pipeline-rank 2 --pipeline-model-parallel-layout EtL", "at most one of"},
      {"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "does not divide the 8 layers"},
      {"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage x", "expected an integer"},
      {"--num-layers-per-virtual-pipeline-stage 2", "needs --num-layers and"},
      {"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
       "--decoder-first-pipeline-num-layers 2",
       "--num-virtual-stages-per-pipeline-rank"},
  };
  for (const auto& [flags, word] : cases) {
    const std::string error = catch_error([&, flags = flags] { whole(flags); });
    EXPECT_NE(error.find(word), std::string::npos) << flags << "\n" << error;
  }
  const std::string missing = catch_error([] { parse_arguments(words("--num-layers 4 --lr 1")); });
  EXPECT_NE(missing.find("missing --hidden-size, --num-attention-heads, --max-position-embeddings, --seq-length"),
            std::string::npos)
      << missing;
}

}  // namespace metroplex::megatron::flags_test
