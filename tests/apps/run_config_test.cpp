// A command line that contains a Megatron launch script.
#include "run_config.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <thread>

#include "base/error.h"
#include "program.h"
#include "config/load.h"
#include "config/validate.h"
#include "support/launch_scripts.h"

namespace metroplex::apps::run_config_test {

using test::LaunchScripts;
using Words = std::vector<std::string>;

static const char* const kModel =
    " --num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --lr 1e-3 --mock-data --vocab-size 512 --train-iters 5 ";

TEST_F(LaunchScripts, AreReadOnACommandLineWithTheirArguments) {
  write(std::string("torchrun --nproc_per_node 4 pretrain_gpt.py --save $1 --load \"$2\"") + kModel);
  write("train:\n  log_interval: 7\n", "more.yaml");
  const RunArguments out = parse_run_arguments(
      {"--from-megatron-args", "run.sh", "ck", "other ck", "more.yaml", "--model.num_layers=2", "--lr", "1"});
  EXPECT_EQ(out.config.checkpoint.save, "ck");
  EXPECT_EQ(out.config.checkpoint.load, "other ck");
  EXPECT_EQ(out.config.train.log_interval, 7);
  EXPECT_EQ(out.config.model.num_layers, 2);
  EXPECT_EQ(out.config.optim.lr, 1.0);
  EXPECT_EQ(out.script_ranks, 4);
  EXPECT_EQ(parse_run_arguments({"--lr=1", "--from-megatron-args=run.sh", "--", "odd.yaml", "x.yaml"})
                .config.checkpoint.load,
            "x.yaml");
  for (const Words& few : {Words{}, Words{"ck"}}) {
    Words line{"--from-megatron-args", "run.sh"};
    line.insert(line.end(), few.begin(), few.end());
    try {
      parse_run_arguments(line);
      ADD_FAILURE() << few.size();
    } catch (const base::Error& error) {
      EXPECT_NE(std::string(error.what()).find("reads $1 to $2"), std::string::npos) << error.what();
    }
  }
}

TEST_F(LaunchScripts, ReportOtherCommandsAndUnknownRanks) {
  write(std::string("deepspeed pretrain_gpt.py") + kModel + "\npython tasks/main.py --lr 1\n");
  const RunArguments first = parse_run_arguments({"--from-megatron-args", "run.sh"});
  ASSERT_EQ(first.notes.size(), 1u);
  EXPECT_NE(first.notes[0].find("pretrain_gpt.py with"), std::string::npos);
  EXPECT_NE(first.notes[0].find("tasks/main.py"), std::string::npos);
  EXPECT_EQ(first.script_ranks, 0);
  EXPECT_EQ(first.unknown_script_ranks, "run.sh: deepspeed");
  const RunArguments child = parse_run_arguments(first.arguments);
  EXPECT_EQ(child.notes, first.notes);
  EXPECT_EQ(child.unknown_script_ranks, first.unknown_script_ranks);
}

TEST_F(LaunchScripts, WithUnknownFlagsAreRefused) {
  for (const std::string& text :
       {std::string("pretrain_gpt.py --num-experts 8 --moe-n-hash-layers 16") + kModel,
        std::string("pretrain_gpt.py --qk-clip") + kModel, std::string("pretrain_gpt.py --fantasy-knob 3") + kModel,
        std::string("pretrain_bert.py") + kModel}) {
    write("torchrun " + text);
    EXPECT_THROW(parse_run_arguments({"--from-megatron-args", "run.sh"}), base::Error) << text;
    const RunArguments ignored = parse_run_arguments({"--from-megatron-args", "run.sh", "--ignore-unknown-flags"});
    EXPECT_EQ(ignored.config.model.num_layers, 8);
    EXPECT_EQ(ignored.notes.size(), 1u) << text;
  }
  write(std::string("torchrun pretrain_gpt.py --wandb-project x --ckpt-format torch --transformer-impl local") +
        kModel);
  EXPECT_TRUE(parse_run_arguments({"--from-megatron-args", "run.sh"}).notes.empty());
  EXPECT_TRUE(parse_run_arguments({"--wandb-project", "x"}).notes.empty());
  EXPECT_THROW(parse_run_arguments({"--moe-n-hash-layers", "16"}), base::Error);
  EXPECT_THROW(parse_run_arguments({"--fantasy-knob", "8"}), base::Error);
  EXPECT_EQ(parse_run_arguments({"--fantasy-knob", "8", "--ignore-unknown-flags"}).notes.size(), 1u);
}

TEST_F(LaunchScripts, DropFlagsWithoutEffect) {
  const std::string latent = "--multi-latent-attention --position-embedding-type rope --kv-channels 128 ";
  const std::vector<std::pair<std::string, Words>> cases = {
      {"--save-interval 100 --finetune", {"--save-interval 100", "--finetune"}},
      {"--recompute-num-layers 1", {"--recompute-num-layers 1"}},
      {"--recompute-method uniform --recompute-modules layernorm", {"--recompute-method", "--recompute-modules"}},
      {"--moe-aux-loss-coeff 0.01 --moe-router-pre-softmax",
       {"--moe-aux-loss-coeff 0.01", "--moe-router-pre-softmax"}},
      {"--kv-lora-rank 64 --v-head-dim 16", {"--kv-lora-rank 64", "--v-head-dim 16"}},
      {"--mscale 0.5 --rotary-scaling-factor 4", {"--mscale 0.5", "--rotary-scaling-factor 4"}},
      {"--window-attn-skip-freq 2", {"--window-attn-skip-freq 2"}},
      {"--lr-wsd-decay-iters 3", {"--lr-wsd-decay-iters 3"}},
      {"--lr-wsd-decay-samples 3", {"--lr-wsd-decay-samples 3"}},
      {"--rotary-interleaved --rotary-seq-len-interpolation-factor 2",
       {"--rotary-interleaved", "--rotary-seq-len-interpolation-factor 2"}},
      {latent, {"--kv-channels 128"}}};
  for (const auto& [flags, noted] : cases) {
    write("torchrun pretrain_gpt.py " + flags + kModel);
    const RunArguments out = parse_run_arguments({"--from-megatron-args", "run.sh"});
    EXPECT_EQ(config::violations(out.config, 1).size(), 0u) << flags << config::message(violations(out.config, 1));
    for (const std::string& flag : noted) {
      EXPECT_EQ(std::count_if(out.notes.begin(), out.notes.end(),
                              [&](const std::string& note) {
                                return note.rfind(flag, 0) == 0 &&
                                       note.find(": ignored, as Megatron does: ") != std::string::npos;
                              }),
                1)
          << flag;
    }
    EXPECT_EQ(out.notes.size(), noted.size()) << flags;
  }
  // Megatron raises here.
  for (const char* flag : {"--moe-pad-expert-input-to-capacity", "--moe-router-enable-expert-bias"}) {
    write(std::string("torchrun pretrain_gpt.py ") + flag + kModel);
    EXPECT_NE(config::violations(parse_run_arguments({"--from-megatron-args", "run.sh"}).config, 1).size(), 0u)
        << flag;
  }
  // An option that makes the flag effective keeps it; a key of the command line itself is never dropped.
  write(std::string("torchrun pretrain_gpt.py --save-interval 2") + kModel);
  EXPECT_EQ(
      parse_run_arguments({"--from-megatron-args", "run.sh", "--checkpoint.save=ck"}).config.checkpoint.save_interval,
      2);
  for (const Words& own : {Words{"--checkpoint.save_interval=3"}, Words{"--save-interval", "3"}}) {
    Words line{"--from-megatron-args", "run.sh"};
    line.insert(line.end(), own.begin(), own.end());
    EXPECT_EQ(parse_run_arguments(line).config.checkpoint.save_interval, 3);
  }
  for (const char* refused : {"--recompute-granularity selective --recompute-num-layers 1",
                              "--moe-ffn-hidden-size 64", "--expert-model-parallel-size 2"}) {
    write("torchrun pretrain_gpt.py " + std::string(refused) + kModel);
    EXPECT_FALSE(config::violations(parse_run_arguments({"--from-megatron-args", "run.sh"}).config, 2).empty());
  }
}

TEST_F(LaunchScripts, OfCodegeexTrainACodegeex) {
  const std::string flags =
      " --tensor-model-parallel-size 2 --fp16 --loss-scale 12 --deepspeed --zero-stage 2 "
      "--deepspeed-activation-checkpointing --no-pipeline-parallel";
  write("deepspeed --num_gpus 8 codegeex/megatron/tools/pretrain_codegeex.py" + flags + kModel);
  const config::Config config = parse_run_arguments({"--from-megatron-args", "run.sh"}).config;
  EXPECT_EQ(config.model.family, "codegeex");
  EXPECT_EQ(config.model.activation, config::Activation::quick_gelu);
  EXPECT_EQ(config.parallel.data_parallel_sharding_strategy, config::ShardingStrategy::optim_grads);
  EXPECT_EQ(config.memory.recompute_granularity, config::Recompute::full);
  EXPECT_EQ(config::violations(config, 8).size(), 0u) << config::message(config::violations(config, 8));
}

TEST_F(LaunchScripts, LikeThemAConfigurationFromAPipeIsReadOnceForAllProcesses) {
  ASSERT_EQ(::mkfifo("pipe.yaml", 0600), 0);
  for (const Words& line : {Words{"pipe.yaml", "--optim.lr", "2"}, Words{"--optim.lr=2", "--config=pipe.yaml"}}) {
    std::thread writer([] { std::ofstream("pipe.yaml") << "train:\n  log_interval: 7\n"; });
    const RunArguments first = parse_run_arguments(line);
    writer.join();
    EXPECT_EQ(first.config.train.log_interval, 7);
    const RunArguments child = parse_run_arguments(first.arguments),
                       grandchild = parse_run_arguments(child.arguments);
    EXPECT_EQ(config::dump(child.config), config::dump(first.config));
    EXPECT_EQ(config::dump(grandchild.config), config::dump(first.config));
  }
}

TEST_F(LaunchScripts, AreReadOnceForAllProcesses) {
  write(std::string("torchrun pretrain_gpt.py --seed $RANDOM$RANDOM --save $1") + kModel);
  write("train:\n  log_interval: 7\n", "more.yaml");
  const RunArguments first =
      parse_run_arguments({"--optim.lr", "2", "--from-megatron-args", "run.sh", "ck", "more.yaml", "--lr=3"});
  write("exit 1\n");  // must not be read again
  const RunArguments child = parse_run_arguments(first.arguments), grandchild = parse_run_arguments(child.arguments);
  EXPECT_EQ(config::dump(child.config), config::dump(first.config));
  EXPECT_EQ(config::dump(grandchild.config), config::dump(first.config));
  EXPECT_EQ(child.notes, first.notes);
  EXPECT_EQ(child.script_ranks, first.script_ranks);
  EXPECT_EQ(child.config.checkpoint.save, "ck");
  EXPECT_EQ(child.config.train.log_interval, 7);
  EXPECT_THROW(parse_run_arguments({"--launch-script-read", "run.sh", "0", "p.py", "1", "", "0", "9"}), base::Error);
}

TEST(ExitCodes, ARunThatMemoryEndsEndsAsOneThatCannotFit) {
  EXPECT_EQ(to_exit_code(std::bad_alloc()), kExitConfig);
  EXPECT_EQ(to_exit_code(base::Error("memory", "")), kExitConfig);
  EXPECT_EQ(to_exit_code(std::runtime_error("")), kExitInternal);
}

}  // namespace metroplex::apps::run_config_test
