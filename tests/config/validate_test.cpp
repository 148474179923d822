// Rejected configurations with their messages, and the values that the accepted ones resolve to.
#include "config/validate.h"

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "config/fields.h"
#include "config/parallel.h"
#include "config/support.h"
#include "config/rules_transformer.h"

namespace metroplex::config::validate_test {

static const std::vector<Wrong>& wrong_ranks_and_shapes() {
  static const std::vector<Wrong> kCases = {
      {{"parallel.tensor_model_parallel_size=4", "parallel.pipeline_model_parallel_size=4"},
       "parallel.tensor_model_parallel_size",
       "must divide the 8 ranks"},
      {{"parallel.tensor_model_parallel_size=0"}, "parallel.tensor_model_parallel_size", "at least 1"},
      {{"parallel.pipeline_model_parallel_size=-2"}, "parallel.pipeline_model_parallel_size", "at least 1"},
      {{"parallel.tensor_model_parallel_size=9223372036854775807"},
       "parallel.tensor_model_parallel_size",
       "at most 65536"},
      {{"parallel.order=tp-dp"}, "parallel.order", "once each"},
      {{"parallel.order=tp-cp-ep-dp-pp-pp"}, "parallel.order", "once each"},
      {{"parallel.order=tp-cp-xx-dp-pp"}, "parallel.order", "once each"},
      {{"parallel.order="}, "parallel.order", "once each"},
      {{"parallel.context_parallel_size=2", "train.seq_length=62"}, "train.seq_length", "a multiple of 4"},
      {{"parallel.context_parallel_size=2", "parallel.context_parallel_cut=balanced", "train.seq_length=62",
        "parallel.sequence_parallel=true"},
       "train.seq_length",
       "every rank holds the same number of tokens"},
      {{"parallel.context_parallel_size=2", "parallel.cp_comm_type=a2a+p2p"},
       "parallel.hierarchical_context_parallel_sizes",
       "needs two numbers"},
      {{"parallel.context_parallel_size=2", "parallel.cp_comm_type=a2a+p2p",
        "parallel.hierarchical_context_parallel_sizes=2,x"},
       "parallel.hierarchical_context_parallel_sizes",
       "two numbers"},
      {{"parallel.context_parallel_size=2", "parallel.cp_comm_type=a2a+p2p",
        "parallel.hierarchical_context_parallel_sizes=1,1,2"},
       "parallel.hierarchical_context_parallel_sizes",
       "two numbers"},
      {{"parallel.context_parallel_size=4", "parallel.pipeline_model_parallel_size=1",
        "parallel.cp_comm_type=a2a+p2p", "parallel.hierarchical_context_parallel_sizes=2,4"},
       "parallel.hierarchical_context_parallel_sizes",
       "multiply to 8, not to parallel.context_parallel_size = 4"},
      {{"parallel.context_parallel_size=4", "parallel.pipeline_model_parallel_size=1",
        "parallel.cp_comm_type=a2a+p2p", "parallel.hierarchical_context_parallel_sizes=4,1"},
       "model.num_attention_heads",
       "4 ranks share the 2 heads"},
      {{"parallel.context_parallel_size=2", "parallel.hierarchical_context_parallel_sizes=2,1"},
       "parallel.hierarchical_context_parallel_sizes",
       "no layer uses a2a+p2p"},
      {{"parallel.hierarchical_context_parallel_sizes=2,1"},
       "parallel.hierarchical_context_parallel_sizes",
       "has no effect with"},
      {{"parallel.context_parallel_size=2", "parallel.cp_comm_type=ring"}, "parallel.cp_comm_type", "must be p2p"},
      {{"parallel.context_parallel_size=2", "parallel.cp_comm_type=p2p,a2a,p2p"},
       "parallel.cp_comm_type",
       "has 3 words"},
      {{"parallel.context_parallel_size=4", "parallel.pipeline_model_parallel_size=1", "parallel.cp_comm_type=a2a"},
       "model.num_attention_heads",
       "the 2 heads of a tensor-parallel rank"},
      {{"parallel.context_parallel_size=2", "parallel.context_parallel_token_slack=0.1"},
       "parallel.context_parallel_token_slack",
       "has no effect with parallel.context_parallel_cut = zigzag"},
      {{"parallel.context_parallel_size=2", "parallel.context_parallel_area_slack=0.1"},
       "parallel.context_parallel_area_slack",
       "has no effect with parallel.context_parallel_cut = zigzag"},
      {{"parallel.context_parallel_token_slack=0.1"}, "parallel.context_parallel_token_slack", "has no effect with"},
      {{"parallel.context_parallel_size=2", "parallel.context_parallel_cut=balanced",
        "parallel.context_parallel_token_slack=0.1", "train.cuda_graph_impl=local"},
       "parallel.context_parallel_token_slack",
       "captures one length"},
      {{"parallel.context_parallel_size=2", "train.cuda_graph_impl=full_iteration", "data.reset_attention_mask=true"},
       "train.cuda_graph_impl",
       "which keys parallel.cp_comm_type = p2p sends"},
      {{"parallel.context_parallel_size=2", "train.cuda_graph_impl=local", "data.reset_attention_mask=true",
        "parallel.cp_comm_type=a2a", "parallel.context_parallel_cut=balanced"},
       "train.cuda_graph_impl",
       "which rows a rank holds"},
      {{"parallel.expert_model_parallel_size=2"}, "parallel.expert_model_parallel_size", "the model has none"},
      {{"parallel.expert_tensor_parallel_size=1"}, "parallel.expert_tensor_parallel_size", "without experts"},
      {{"model.num_attention_heads=3", "model.hidden_size=66", "model.ffn_hidden_size=64"},
       "model.num_attention_heads",
       "multiple of parallel.tensor_model_parallel_size = 2"},
      {{"model.hidden_size=66"}, "model.hidden_size", "multiple of model.num_attention_heads = 4"},
      {{"model.num_query_groups=3"},
       "model.num_query_groups",
       "must be a multiple of parallel.tensor_model_parallel_size = 2"},
      {{"model.num_attention_heads=8", "model.num_query_groups=6"}, "model.num_query_groups", "must divide"},
      {{"model.num_query_groups=1"}, "model.num_query_groups", "is never replicated over tensor-parallel ranks"},
      {{"model.ffn_hidden_size=31"}, "model.ffn_hidden_size", "multiple of parallel.tensor_model_parallel_size = 2"},
      {{"model.hidden_size=16", "model.activation=silu", "model.gated_linear_unit=true"},
       "model.ffn_hidden_size",
       "cannot be derived"},
      {{"model.position_embedding_type=rope", "model.kv_channels=15"}, "model.rotary_percent", "even number"},
      {{"model.rotary_percent=1.5"}, "model.rotary_percent", "at most 1"},
      {{"model.rotary_percent=0"}, "model.rotary_percent", "above 0"},
      {{"model.max_position_embeddings=16"}, "train.seq_length", "model.max_position_embeddings = 16"},
      {{"parallel.sequence_parallel=true", "train.seq_length=33"}, "train.seq_length", "multiple of parallel.tensor"},
      {{"model.family=lama"}, "model.family", "one of gpt, codegeex, llama"},
      {{"model.activation=gello"}, "model.activation", "one of gelu"},
      {{"model.normalization=rmsnorm"}, "model.normalization", "one of LayerNorm, RMSNorm"},
      {{"model.position_embedding_type=alibi"}, "model.position_embedding_type", "one of learned_absolute"},
      {{"model.activation=squared_relu", "model.gated_linear_unit=true"}, "model.activation", "no gated form"},
      {{"model.num_layers=0"}, "model.num_layers", "at least 1"},
      {{"model.hidden_size=0"}, "model.hidden_size", "at least 1"},
      {{"model.attention_dropout=1.5"}, "model.attention_dropout", "at most 1"},
      {{"model.hidden_dropout=1.5"}, "model.hidden_dropout", "at most 1"},
      {{"model.init_method_std=-1"}, "model.init_method_std", "at least 0"},
      {{"model.hidden_dropout=-0.1"}, "model.hidden_dropout", "at least 0"},
      {{"model.layernorm_epsilon=0"}, "model.layernorm_epsilon", "above 0"},
      {{"model.make_vocab_size_divisible_by=0"}, "model.make_vocab_size_divisible_by", "at least 1"},
      {{"precision.params_dtype=fp8"}, "precision.params_dtype", "one of fp32, fp64, bf16, fp16"},
      {{"run.backend=mpi"}, "run.backend", "one of auto, threads, gloo, nccl"},
      {{"run.master_port=70000"}, "run.master_port", "at most 65535"},
      {{"run.seed=-1"}, "run.seed", "at least 0"},
  };
  return kCases;
}

static const std::vector<Wrong>& wrong_pipelines_and_batches() {
  static const std::vector<Wrong> kCases = {
      {{"model.num_layers=7"}, "model.num_layers", "multiple of the 2 stages"},
      {{"model.num_layers=6", "parallel.virtual_pipeline_model_parallel_size=2"}, "model.num_layers", "the 4 stages"},
      {{"parallel.pipeline_model_parallel_size=1", "parallel.virtual_pipeline_model_parallel_size=2"},
       "parallel.virtual_pipeline_model_parallel_size",
       "needs a pipeline"},
      {{"parallel.pipeline_schedule=none"}, "parallel.pipeline_schedule", "needs one stage"},
      {{"parallel.pipeline_schedule=interleaved"}, "parallel.pipeline_schedule", "needs virtual stages"},
      {{"parallel.pipeline_schedule=gpipe", "parallel.virtual_pipeline_model_parallel_size=2"},
       "parallel.pipeline_schedule",
       "has no virtual stages"},
      {{"parallel.pipeline_schedule=zigzag"}, "parallel.pipeline_schedule", "one of auto"},
      {{"parallel.overlap_p2p_comm=true"}, "parallel.overlap_p2p_comm", "interleaved"},
      {{"parallel.virtual_pipeline_model_parallel_size=2", "parallel.microbatch_group_size_per_vp_stage=1"},
       "parallel.microbatch_group_size_per_vp_stage",
       "at least parallel.pipeline_model_parallel_size = 2"},
      {{"parallel.decoder_first_pipeline_num_layers=8"}, "model.num_layers", "0 layers for 1 stages"},
      {{"parallel.decoder_first_pipeline_num_layers=3", "parallel.virtual_pipeline_model_parallel_size=2"},
       "parallel.decoder_first_pipeline_num_layers",
       "multiple of the 2 virtual stages"},
      {{"parallel.decoder_first_pipeline_num_layers=3", "parallel.decoder_last_pipeline_num_layers=3"},
       "model.num_layers",
       "2 layers for 0 stages"},
      {{"parallel.decoder_first_pipeline_num_layers=2", "parallel.account_for_loss_in_pipeline_split=true"},
       "parallel.decoder_first_pipeline_num_layers",
       "cannot be combined"},
      {{"parallel.account_for_loss_in_pipeline_split=true"}, "model.num_layers", "9 units"},
      {{"parallel.pipeline_model_parallel_layout=Etttt|tttL"},
       "parallel.pipeline_model_parallel_layout",
       "has 7 layers"},
      {{"parallel.pipeline_model_parallel_layout=Et*4|tt|ttL"},
       "parallel.pipeline_model_parallel_layout",
       "3 stages"},
      {{"parallel.pipeline_model_parallel_layout=t*4E|t*4L"},
       "parallel.pipeline_model_parallel_layout",
       "begin with"},
      {{"parallel.pipeline_model_parallel_layout=Et*4|x*4L"}, "parallel.pipeline_model_parallel_layout", "'x'"},
      {{"parallel.pipeline_model_parallel_layout=E(t*4|t*4L"},
       "parallel.pipeline_model_parallel_layout",
       "never closed"},
      {{"parallel.pipeline_model_parallel_layout=Et*999999999999|L"},
       "parallel.pipeline_model_parallel_layout",
       "letters"},
      {{"parallel.pipeline_model_parallel_layout=Et*4|t*4L", "parallel.account_for_loss_in_pipeline_split=true"},
       "parallel.pipeline_model_parallel_layout",
       "excludes"},
      {{"parallel.pipeline_model_parallel_layout=Et*4|t*4L", "parallel.virtual_pipeline_model_parallel_size=2"},
       "parallel.virtual_pipeline_model_parallel_size",
       "1 virtual stages"},
      {{"train.global_batch_size=7"}, "train.global_batch_size", "must be a multiple of train.micro_batch_size * dp"},
      {{"train.global_batch_size=1", "train.decrease_batch_size_if_needed=true"},
       "train.global_batch_size",
       "multiple of"},
      {{"train.micro_batch_size=0"}, "train.micro_batch_size", "at least 1"},
      {{"train.step_batch_size_schedule=0:8 1K:16"}, "train.global_batch_size", "step_batch_size_schedule"},
      {{"train.global_batch_size=0", "train.step_batch_size_schedule=0:8 1K:15"},
       "train.step_batch_size_schedule",
       "= 2"},
      {{"train.global_batch_size=0", "train.step_batch_size_schedule=0:8 foo"},
       "train.step_batch_size_schedule",
       "'foo' is not"},
      {{"train.global_batch_size=0", "train.step_batch_size_schedule=64:8"},
       "train.step_batch_size_schedule",
       "begin at 0"},
      {{"train.global_batch_size=0", "train.step_batch_size_schedule=0:8 0:16"},
       "train.step_batch_size_schedule",
       "same threshold"},
      {{"train.global_batch_size=0", "train.step_batch_size_schedule=0:8 100:16 101:24"},
       "train.step_batch_size_schedule",
       "same threshold, 3 samples"},
      {{"train.global_batch_size=0", "train.step_batch_size_schedule=0:8 1K:16",
        "train.decrease_batch_size_if_needed=true"},
       "train.step_batch_size_schedule",
       "excludes train.decrease_batch_size_if_needed"},
      {{"train.rampup_batch_size=8 2 100", "train.train_iters=0", "train.train_samples=99"},
       "train.rampup_batch_size",
       "not reached"},
      {{"train.rampup_batch_size=4 2 0", "train.train_iters=0", "train.train_samples=99"},
       "train.rampup_batch_size",
       "must be positive"},
      {{"train.rampup_batch_size=4 2 100"}, "train.train_iters", "measured in samples"},
      {{"train.rampup_batch_size=4 3 100", "train.train_iters=0", "train.train_samples=99"},
       "train.rampup_batch_size",
       "not reached"},
      {{"train.rampup_batch_size=4 2", "train.train_iters=0", "train.train_samples=99"},
       "train.rampup_batch_size",
       "three whole numbers"},
      {{"train.rampup_batch_size=3 5 100", "train.train_iters=0", "train.train_samples=99"},
       "train.rampup_batch_size",
       "multiple of"},
  };
  return kCases;
}

static const std::vector<Wrong>& wrong_schedules_and_data() {
  static const std::vector<Wrong> kCases = {
      {{"train.train_iters=0"}, "train.train_iters", "exactly one"},
      {{"train.train_samples=100"}, "train.train_iters", "exactly one"},
      {{"train.train_epochs=2"}, "train.train_epochs", "train.train_iters"},
      {{"train.train_iters=0", "train.train_samples=8", "train.train_epochs=2"},
       "train.train_epochs",
       "train_samples"},
      {{"optim.lr_decay_samples=100"}, "optim.lr_decay_samples", "measured in iters"},
      {{"optim.lr_warmup_samples=1"}, "optim.lr_warmup_samples", "measured in iters"},
      {{"train.train_iters=0", "train.train_samples=100", "optim.lr_decay_iters=5"},
       "optim.lr_decay_iters",
       "measured in samples"},
      {{"optim.lr_warmup_fraction=0.1", "optim.lr_warmup_iters=2"}, "optim.lr_warmup_fraction", "excludes"},
      {{"optim.lr_warmup_fraction=1"}, "optim.lr_warmup_fraction", "below 1"},
      {{"optim.lr_warmup_iters=10"}, "optim.lr_warmup_iters", "shorter than the decay of 10"},
      {{"optim.min_lr=0.1"}, "optim.min_lr", "optim.lr = 0.0003"},
      {{"optim.lr_warmup_init=0.1"}, "optim.lr_warmup_init", "optim.lr = 0.0003"},
      {{"optim.lr_decay_style=cosin"}, "optim.lr_decay_style", "one of constant"},
      {{"optim.lr_decay_style=WSD"}, "optim.lr_wsd_decay_iters", "must be given"},
      {{"optim.lr_decay_style=WSD", "optim.lr_wsd_decay_iters=11"}, "optim.lr_wsd_decay_iters", "decay of 10"},
      {{"optim.lr_wsd_decay_iters=3"}, "optim.lr_wsd_decay_iters", "belongs to"},
      {{"optim.start_weight_decay=0.1"}, "optim.start_weight_decay", "no meaning"},
      {{"optim.weight_decay_incr_style=linear", "optim.start_weight_decay=0.1"},
       "optim.end_weight_decay",
       "must be given"},
      {{"optim.weight_decay_incr_style=cosine", "optim.start_weight_decay=0.2", "optim.end_weight_decay=0.1"},
       "optim.end_weight_decay",
       "must not be below"},
      {{"optim.override_opt_param_scheduler=true", "optim.use_checkpoint_opt_param_scheduler=true"},
       "optim.override_opt_param_scheduler",
       "excludes"},
      {{"optim.optimizer=adamw"}, "optim.optimizer", "one of adam, sgd, lion, muon"},
      {{"optim.adam_beta2=1"}, "optim.adam_beta2", "below 1"},
      {{"optim.clip_grad=-1"}, "optim.clip_grad", "at least 0"},
      {{"train.eval_interval=5", "train.eval_iters=0"}, "train.eval_iters", "at least 1"},
      {{"train.skip_train=true", "train.eval_iters=0"}, "train.eval_iters", "train.skip_train = true"},
      {{"train.eval_global_batch_size=3"}, "train.eval_global_batch_size", "must be a multiple of"},
      {{"data.multiple_validation_sets=true"}, "data.multiple_validation_sets", "data.valid_data_path"},
      {{"train.log_interval=0"}, "train.log_interval", "at least 1"},
      {{"train.timing_log_level=3"}, "train.timing_log_level", "at most 2"},
      {{"train.label_smoothing=1"}, "train.label_smoothing", "below 1"},
      {{"data.mock_data=false"}, "data.data_path", "exactly one source"},
      {{"data.data_path=a"}, "data.data_path", "exactly one source"},
      {{"data.mock_data=false", "data.valid_data_path=a"}, "data.train_data_path", "must be given"},
      {{"data.mock_data=false", "data.train_data_path=a", "data.split=1"}, "data.split", "per-split"},
      {{"data.mock_data=false", "data.data_path=0.5,a,b,c"}, "data.data_path", "mixes weights"},
      {{"data.mock_data=false", "data.data_path=0.5,a,0,c"}, "data.data_path", "above 0"},
      {{"data.split=1,2,3,4"}, "data.split", "one to three shares"},
      {{"data.split=0,0,0"}, "data.split", "not all 0"},
      {{"data.split=a"}, "data.split", "one to three shares"},
      {{"model.vocab_size=0"}, "model.vocab_size", "must be given"},
      {{"data.tokenizer_type=bytes", "model.vocab_size=100"}, "model.vocab_size", "256 bytes"},
      {{"data.tokenizer_type=sentencepiece"}, "data.tokenizer_model", ".model file"},
      {{"data.tokenizer_type=bpe"}, "data.tokenizer_model", "tokenizer.json"},
      {{"data.tokenizer_type=bpe", "data.tokenizer_model=t.json", "data.vocab_file=v"},
       "data.vocab_file",
       "merge_file"},
      {{"data.dataloader_type=random"}, "data.dataloader_type", "one of single, cyclic"},
      {{"data.dataloader_type=cyclic", "checkpoint.load=x"}, "data.data_sharding", "cannot resume on another number"},
      {{"data.num_workers=-1"}, "data.num_workers", "at least 0"},
      {{"checkpoint.save=x", "checkpoint.save_retain_interval=6"}, "checkpoint.save_retain_interval", "multiple of"},
      {{"checkpoint.save_interval=4"}, "checkpoint.save_interval", "needs checkpoint.save"},
      {{"checkpoint.async_save=true"}, "checkpoint.async_save", "needs checkpoint.save"},
      {{"checkpoint.export_hf=x"}, "checkpoint.export_hf", "needs checkpoint.save"},
      {{"checkpoint.save=x", "checkpoint.save_interval=4", "checkpoint.save_retain_interval=6"},
       "checkpoint.save_retain_interval",
       "multiple of checkpoint.save_interval = 4"},
      {{"checkpoint.finetune=true"}, "checkpoint.finetune", "needs checkpoint.load"},
      {{"checkpoint.load=x", "checkpoint.finetune=true", "checkpoint.ckpt_step=3"},
       "checkpoint.ckpt_step",
       "excludes"},
      {{"checkpoint.exit_on_missing_checkpoint=true"},
       "checkpoint.exit_on_missing_checkpoint",
       "needs checkpoint.load"},
      {{"checkpoint.resume_with_other_data=true"}, "checkpoint.resume_with_other_data", "needs checkpoint.load"},
      {{"checkpoint.load=x", "checkpoint.finetune=true", "checkpoint.resume_with_other_data=true"},
       "checkpoint.resume_with_other_data",
       "excludes checkpoint.finetune"},
  };
  return kCases;
}

TEST(Validate, TheConfigurationThatTheseTestsSpoilIsGood) {
  EXPECT_EQ(described(violations(good(), kWorld)), "nothing");
  EXPECT_NO_THROW(check(good(), kWorld));
}

TEST(Validate, RefusesWrongRanksAndShapes) {
  for (const Wrong& wrong : wrong_ranks_and_shapes()) expect_refused(wrong);
}

TEST(Validate, RefusesWrongPipelinesAndBatches) {
  for (const Wrong& wrong : wrong_pipelines_and_batches()) expect_refused(wrong);
}

TEST(Validate, RefusesWrongSchedulesAndData) {
  for (const Wrong& wrong : wrong_schedules_and_data()) expect_refused(wrong);
}

TEST(Validate, KnowsMoreThanAHundredWaysToBeWrong) {
  EXPECT_GE(
      wrong_ranks_and_shapes().size() + wrong_pipelines_and_batches().size() + wrong_schedules_and_data().size(),
      110u);
}

TEST(Validate, ListsAllViolationsInOneError) {
  const std::string error = catch_error([] {
    check(good({"optim.min_lr=1", "data.split=a", "model.num_layers=7", "checkpoint.save_retain_interval=6"}),
          kWorld);
  });
  EXPECT_EQ(error.rfind("[config] ", 0), 0u) << error;
  for (const char* key : {"optim.min_lr = 1.0: ", "data.split = a: ", "model.num_layers = 7: ",
                          "checkpoint.save_retain_interval = 6: "}) {
    EXPECT_NE(error.find(key), std::string::npos) << key << error;
  }
  EXPECT_NE(error.find("4 reasons"), std::string::npos) << error;
}

TEST(Validate, AKeyOutsideItsOwnLimitsIsBlamedOnce) {
  for (const char* wrong : {"model.num_layers=0", "parallel.tensor_model_parallel_size=-3",
                            "train.micro_batch_size=0", "train.seq_length=-1", "model.num_attention_heads=0"}) {
    EXPECT_EQ(violations(good({wrong}), kWorld).size(), 1u) << wrong << described(violations(good({wrong}), kWorld));
  }
}

TEST(Validate, RefusesAWorldOfNoRanks) {
  EXPECT_EQ(violations(good(), 0).at(0).key, "run.nproc");
  EXPECT_EQ(violations(good(), -8).size(), 1u);
}

TEST(Validate, AcceptsWhatTheRulesAllow) {
  const std::vector<std::vector<std::string>> cases = {
      {"parallel.virtual_pipeline_model_parallel_size=2", "parallel.overlap_p2p_comm=true"},
      {"parallel.virtual_pipeline_model_parallel_size=2", "parallel.microbatch_group_size_per_vp_stage=4",
       "train.global_batch_size=12"},
      {"parallel.decoder_first_pipeline_num_layers=3"},
      {"parallel.decoder_first_pipeline_num_layers=3", "parallel.decoder_last_pipeline_num_layers=5"},
      {"parallel.account_for_embedding_in_pipeline_split=true", "parallel.account_for_loss_in_pipeline_split=true"},
      {"parallel.pipeline_model_parallel_layout=Ett|(tt|)*2,ttL"},
      {"parallel.sequence_parallel=true"},
      {"parallel.sequence_parallel=true", "parallel.tensor_model_parallel_size=1", "train.seq_length=33"},
      {"train.global_batch_size=7", "train.decrease_batch_size_if_needed=true"},
      {"train.global_batch_size=0", "train.step_batch_size_schedule=0:8 1.5K:16"},
      {"train.rampup_batch_size=4 2 100", "train.train_iters=0", "train.train_samples=99"},
      {"data.mock_data=false", "data.data_path=a,b,c"},
      {"data.mock_data=false", "data.data_path=0.3,a,0.7,b"},
      {"data.mock_data=false", "data.train_data_path=a", "data.valid_data_path=b"},
      {"data.dataloader_type=cyclic"},
      {"data.dataloader_type=cyclic", "data.data_sharding=false", "checkpoint.load=x"},
      {"optim.weight_decay_incr_style=cosine", "optim.start_weight_decay=0", "optim.end_weight_decay=0.1"},
      {"optim.lr_decay_style=WSD", "optim.lr_wsd_decay_iters=3"},
      {"parallel.order=tp-cp-ep-pp-dp"},
      {"precision.params_dtype=fp64"},
      {"model.kv_channels=10", "model.hidden_size=66", "model.ffn_hidden_size=64"},
      {"model.family=llama"},
  };
  for (const auto& overrides : cases) {
    EXPECT_EQ(described(violations(good(overrides), kWorld)), "nothing") << overrides[0];
  }
}

TEST(Resolved, FillsWhatIsDerived) {
  const Config config = resolved(good({"parallel.pipeline_model_parallel_layout=Ett|(tt|)*2,ttL"}), kWorld);
  EXPECT_EQ(config.model.ffn_hidden_size, 256);
  EXPECT_EQ(config.model.kv_channels, 16);
  EXPECT_EQ(config.model.num_query_groups, 4);
  EXPECT_EQ(config.model.max_position_embeddings, 32);
  EXPECT_EQ(config.parallel.vpp(), 2);
  EXPECT_EQ(config.parallel.pipeline_schedule, Schedule::interleaved);
  EXPECT_EQ(config.parallel.expert_tensor_parallel_size, 2);
  EXPECT_EQ(config.parallel.microbatch_group_size_per_vp_stage, 2);
  EXPECT_EQ(config.parallel.ddp_bucket_size, 40000000);
  EXPECT_EQ(config.optim.lr_decay_iters, 10);
  EXPECT_EQ(config.optim.end_weight_decay, 0.01);
  EXPECT_EQ(resolved(good({"train.global_batch_size=0", "train.micro_batch_size=3"}), kWorld).train.global_batch_size,
            6);
  EXPECT_EQ(resolved(good({"parallel.tensor_model_parallel_size=1", "parallel.sequence_parallel=true"}), kWorld)
                .parallel.sequence_parallel,
            false);
  EXPECT_EQ(resolved(good(), 256).parallel.ddp_bucket_size, 64000000);
}

// int(8/3 h / 64) * 64 at Llama's published widths: 7B has 11008, 13B 13824 (Megatron's formula gives 10880 and
// 13632).
TEST(Resolved, GatedWidthIsMegatronsFormula) {
  const std::vector<std::pair<int64_t, int64_t>> widths = {
      {4096, 10880}, {5120, 13632}, {288, 768}, {64, 128}, {24, 64}};
  for (const auto& [hidden, ffn] : widths) {
    const Config config = good({"model.hidden_size=" + std::to_string(hidden), "model.gated_linear_unit=true"});
    EXPECT_EQ(resolved(config, kWorld).model.ffn_hidden_size, ffn) << hidden;
  }
}

TEST(Resolved, IsItsOwnFixedPointAndStaysValidAndLoadsBack) {
  for (const auto& overrides : std::vector<std::vector<std::string>>{
           {},
           {"model.family=llama", "parallel.virtual_pipeline_model_parallel_size=2"},
           {"parallel.pipeline_model_parallel_layout=Ett|(tt|)*2,ttL"},
           {"parallel.pipeline_model_parallel_layout=Etttt|ttttL"},
           {"train.global_batch_size=0", "train.step_batch_size_schedule=0:8 1K:16"},
           {"train.train_iters=0", "train.train_samples=100", "optim.lr_decay_style=cosine"},
           {"optim.weight_decay_incr_style=linear", "optim.start_weight_decay=0", "optim.end_weight_decay=0.1"}}) {
    const Config once = resolved(good(overrides), kWorld);
    EXPECT_EQ(described(violations(once, kWorld)), "nothing");
    EXPECT_EQ(differences(resolved(once, kWorld), once), std::vector<std::string>{});
    EXPECT_EQ(differences(parse(dump(once)), once), std::vector<std::string>{});
  }
}

TEST(BatchSizes, AreThoseTheRunPassesThrough) {
  EXPECT_EQ(batch_sizes(good(), kWorld), (std::vector<int64_t>{8}));
  EXPECT_EQ(batch_sizes(good({"train.global_batch_size=0"}), kWorld), (std::vector<int64_t>{2}));
  EXPECT_EQ(batch_sizes(good({"train.step_batch_size_schedule=250B:16,0:8 0.5T:1.5K"}), kWorld),
            (std::vector<int64_t>{8, 16, 1500}));
  EXPECT_EQ(batch_sizes(good({"train.rampup_batch_size=4 2 100"}), kWorld), (std::vector<int64_t>{4, 6, 8}));
}

TEST(Layout, UnrollsGroupsThenLetters) {
  std::string problem;
  EXPECT_EQ(unrolled_layout("Ettt|(tt|)*3,m|L", problem),
            (std::vector<std::string>{"Ettt", "tt", "tt", "tt", "m", "L"}));
  EXPECT_EQ(unrolled_layout("E|t*3|(t|)*5mL", problem),
            (std::vector<std::string>{"E", "ttt", "t", "t", "t", "t", "t", "mL"}));
  EXPECT_EQ(unrolled_layout("E(t*2|)*2tL", problem), (std::vector<std::string>{"Ett", "tt", "tL"}));
  EXPECT_EQ(unrolled_layout("Et|*3L", problem), (std::vector<std::string>{"Et", "", "", "L"}));
  for (const char* bad : {"E((t)*2)*2L", "E(t)L", "E()*2L", "Et*L", "E t"}) {
    EXPECT_EQ(unrolled_layout(bad, problem), std::nullopt) << bad;
  }
}

// The stage rules against every placement recorded from Megatron's TransformerConfig.
TEST(TransformerRules, AgreeWithEveryRecordedPlacementOfLayers) {
  std::ifstream stream(METROPLEX_SOURCE_DIR "/tests/vectors/layers.json");
  const auto file = nlohmann::json::parse(stream);
  int refused = 0;
  for (const auto& one : file.at("cases")) {
    TransformerSettings settings;
    settings.num_layers = one.at("num_layers");
    settings.num_attention_heads = 4;
    settings.pp = one.at("pp");
    const auto maybe = [&](const char* name, std::optional<int64_t>& member) {
      if (!one.at(name).is_null()) member = one.at(name).get<int64_t>();
    };
    maybe("vpp", settings.vpp);
    maybe("num_layers_in_first", settings.first_stage_layers);
    maybe("num_layers_in_last", settings.last_stage_layers);
    settings.account_for_embedding = one.at("account_for_embedding");
    settings.account_for_loss = one.at("account_for_loss");
    const bool accepted = transformer_violations(settings).empty();
    EXPECT_EQ(accepted, one.at("config_ok").get<bool>()) << one.dump().substr(0, 300);
    refused += accepted ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
}

TEST(Examples, PassTheChecks) {
  const std::string folder = METROPLEX_SOURCE_DIR "/examples/";
  EXPECT_NO_THROW(check(load(folder + "gpt2_124m.yaml"), 1));
  const Config tiny = load(folder + "llama_tiny.yaml");
  EXPECT_NO_THROW(check(tiny, 8));
  const Config full = resolved(tiny, 8);
  EXPECT_EQ(full.parallel.pipeline_schedule, Schedule::interleaved);
  EXPECT_EQ(full.model.ffn_hidden_size, 768);
  const Model& m = full.model;
  const int64_t attention =
      m.hidden_size * m.hidden_size * 2 + 2 * m.hidden_size * m.num_query_groups * m.kv_channels;
  const int64_t parameters =
      m.num_layers * (attention + 3 * m.hidden_size * m.ffn_hidden_size) + 2 * m.vocab_size * m.hidden_size;
  EXPECT_GT(parameters, 5000000);
  EXPECT_LT(parameters, 10000000);
}

}  // namespace metroplex::config::validate_test
