// A command line with a launch script of Megatron's in it.
#include "run_config.h"

#include <sys/stat.h>

#include <fstream>
#include <new>
#include <thread>

#include "base/error.h"
#include "program.h"
#include "config/load.h"
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

TEST_F(LaunchScripts, OfAnotherModelAreRefusedUnlessToldToIgnoreIt) {
  for (const std::string& text :
       {std::string("pretrain_gpt.py --num-experts 8 --moe-latent-size 16") + kModel,
        std::string("pretrain_gpt.py --qk-l2-norm") + kModel, std::string("pretrain_bert.py") + kModel}) {
    write("torchrun " + text);
    EXPECT_THROW(parse_run_arguments({"--from-megatron-args", "run.sh"}), base::Error) << text;
    const RunArguments told = parse_run_arguments({"--from-megatron-args", "run.sh", "--ignore-unknown-flags"});
    EXPECT_EQ(told.config.model.num_layers, 8);
    EXPECT_FALSE(told.notes.empty());
  }
  write(std::string("torchrun pretrain_gpt.py --wandb-project x --fantasy-knob 3 --ckpt-format torch") + kModel);
  const RunArguments read = parse_run_arguments({"--from-megatron-args", "run.sh"});
  EXPECT_EQ(read.notes.size(), 3u);
  EXPECT_THROW(parse_run_arguments({"--moe-latent-size", "16"}), base::Error);
  EXPECT_THROW(parse_run_arguments({"--fantasy-knob", "8"}), base::Error);
  EXPECT_EQ(parse_run_arguments({"--fantasy-knob", "8", "--ignore-unknown-flags"}).notes.size(), 1u);
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
  write("exit 1\n");  // to be read no more
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
  EXPECT_EQ(exit_code_of(std::bad_alloc()), kExitConfig);
  EXPECT_EQ(exit_code_of(base::Error("memory", "")), kExitConfig);
  EXPECT_EQ(exit_code_of(std::runtime_error("")), kExitInternal);
}

}  // namespace metroplex::apps::run_config_test
