// Launch scripts in the form of Megatron's examples, read by a trial run of bash.
#include "launch_script.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <unistd.h>

#include <gtest/gtest.h>

#include "base/error.h"
#include "run_config.h"

namespace metroplex::apps {

using Words = std::vector<std::string>;
namespace fs = std::filesystem;

static Words words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// A folder to stand in, which no trial may change.
class LaunchScripts : public ::testing::Test {
 protected:
  LaunchScripts() : home_(fs::current_path()) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / (std::string("metroplex_") + test->name() + std::to_string(getpid()));
    fs::create_directories(folder_);
    fs::current_path(folder_);
  }
  ~LaunchScripts() override {
    fs::current_path(home_);
    fs::remove_all(folder_);
  }
  void write(const std::string& text, const std::string& name = "run.sh") { std::ofstream(name) << text; }
  LaunchScript read(const std::string& text, const Words& arguments = {}) {
    write(text);
    return read_launch_script("run.sh", arguments);
  }
  std::string refused(const std::string& text, const Words& arguments = {}) {
    try {
      read(text, arguments);
    } catch (const base::Error& error) { return error.what(); }
    return "";
  }
  Words files() const {
    Words names;
    for (const auto& entry : fs::recursive_directory_iterator(".")) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  fs::path folder_, home_;
};

static const char* const kArrays = R"SH(#!/bin/bash
# A model in arrays
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=2
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<a path>
DATA_PATH=$5 #<a prefix>_text_document
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr localhost
)
MODEL_ARGS=(
    --num-layers 96 # layers
    --attention-backend auto # Can use (flash/fused)
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    --data-path $DATA_PATH \
    --save $CHECKPOINT_PATH
)SH";

TEST_F(LaunchScripts, TakePositionalArgumentsAndArrays) {
  const LaunchScript script = read(kArrays, {"ck", "tb", "vocab", "merges", "my/data"});
  EXPECT_EQ(script.program, "pretrain_gpt.py");
  EXPECT_EQ(script.flags, words("--num-layers 96 --attention-backend auto --data-path my/data --save ck"));
  EXPECT_EQ(script.ranks, 16);
  EXPECT_EQ(script.arguments_named, 5);
}

TEST_F(LaunchScripts, FollowDefaultsFoldersQuotesAndBranches) {
  const LaunchScript script = read(R"SH(set -euo pipefail
SAVE=${1:-"check points/x"}
TOKENIZER_ARG=${2:-"MOCK"}
NAME=${MISSING_NAME:-some}
mkdir -p "$(dirname "$SAVE")" made
CACHE="${PWD}/cache_$(basename "$SAVE")"
mkdir -p "$CACHE"
if [ ! -f "pretrain_gpt.py" ]; then
  echo "Error: not there"
  exit 1
fi
if [[ ! -f "${PROGRAM:-pretrain_gpt.py}" ]]; then
  exit 1
fi
ARGS=()
if [[ "$TOKENIZER_ARG" == "MOCK" ]]; then
  ARGS+=("--mock-data" "--tokenizer-type NullTokenizer" "--split '99,1,0'")
else
  ARGS+=(--data-path $TOKENIZER_ARG)
fi
if [ -n "${WANDB_API_KEY-}" ]; then
  ARGS+=(--wandb-project x)
fi
case "800M" in 800M) HIDDEN=64 ;; *) exit 1 ;; esac
OPTIONS=" --hidden-size ${HIDDEN} \
  --name ${NAME}"
python -m torch.distributed.run --nproc-per-node=4 pretrain_gpt.py ${ARGS[@]} $OPTIONS --save "$SAVE" --cache "$CACHE" 2>&1 | tee log.txt
)SH");
  Words expected =
      words("--mock-data --tokenizer-type NullTokenizer --split '99,1,0' --hidden-size 64 --name some --save");
  expected.insert(expected.end(), {"check points/x", "--cache", fs::current_path().string() + "/cache_x"});
  EXPECT_EQ(script.flags, expected);
  EXPECT_EQ(script.ranks, 4);
  EXPECT_EQ(files(), (Words{"run.sh"}));
}

TEST_F(LaunchScripts, StartNothingAndWriteNothing) {
  write("old log\n", "old.log");
  const LaunchScript script = read(R"SH(
export PATH=/usr/bin:/bin:$PATH
/usr/bin/touch touched.py
TOOL=/usr/bin/touch
$TOOL also.py
"$TOOL" third.py
touch fourth
rm -f old.log
cd / && cd - > /dev/null
set -Eeuo pipefail
trap 'exit 9' ERR
echo text > made.txt
echo text >> made.txt
cat > made.conf << END
of $(date +%Y) > nothing
END
cat << END >> "made again.conf" 2>&1
x
END
sed -i s/old/new/ old.log
f() { torchrun pretrain_gpt.py --a "$@" > old.log 2>&1; }
f 1 'two words' &
wait
)SH");
  EXPECT_EQ(script.flags, (Words{"--a", "1", "two words"}));
  EXPECT_EQ(files(), (Words{"old.log", "run.sh"}));
  std::ifstream log("old.log");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(log), {}), "old log\n");
}

TEST_F(LaunchScripts, AreFoundBehindAnyLauncher) {
  const std::vector<std::pair<std::string, int64_t>> launchers = {
      {"torchrun --nproc_per_node 2 pretrain_gpt.py --a 1", 2},
      {"exec torchrun --nproc-per-node=2 --nnodes=3 /opt/megatron/pretrain_gpt.py --a 1", 6},
      {"/opt/bin/torchrun --nproc_per_node 2 pretrain_gpt.py --a 1", 2},
      {"python3 pretrain_gpt.py --a 1", 0},
      {"mpirun -np 4 python pretrain_gpt.py --a 1", 4},
      {"srun --ntasks=8 bash -c \"python -u pretrain_gpt.py --a 1\"", 0},
      {"CMD='torchrun --nproc_per_node 2 pretrain_gpt.py --a 1'; eval $CMD", 2},
      {"$EMPTY \"${NOTHING[@]}\" nohup numactl -N 0 torchrun --nproc_per_node gpu pretrain_gpt.py --a 1 &> log "
       "&\nwait",
       0},
      {"sbatch << EOF\n#!/bin/bash\nsrun -n 4 python pretrain_gpt.py --a 1\nEOF", 4},
      {"python tools/preprocess_data.py --x\ntorchrun pretrain_gpt.py --a 1", 0},
      {"./pretrain_gpt.py --a 1", 0},
      {"--a 1", 0},
  };
  for (const auto& [text, ranks] : launchers) {
    const LaunchScript script = read(text + "\n");
    EXPECT_EQ(script.flags, (Words{"--a", "1"})) << text;
    EXPECT_EQ(script.ranks, ranks) << text;
  }
}

TEST_F(LaunchScripts, OfAnotherFolderOfAnotherSystemAndWithParts) {
  fs::create_directories("conf");
  write("MODEL=(--num-layers 3)\n", "conf/model.sh");
  write("source $(dirname $0)/model.sh\r\ntorchrun p.py \\\r\n ${MODEL[@]}\r\n", "conf/dos.sh");
  write(". \"$(dirname \"${BASH_SOURCE[0]}\")/model.sh\"\ntorchrun p.py ${MODEL[@]}\n", "conf/run.sh");
  write("bash conf/run.sh\n", "outer.sh");
  EXPECT_EQ(read_launch_script("conf/run.sh", {}).flags, words("--num-layers 3"));
  EXPECT_EQ(read_launch_script("outer.sh", {}).flags, words("--num-layers 3"));
  EXPECT_NE(refused("exit 3\n"), "");
  write("torchrun p.py --a 1 \\\r\n --b 'x y'\r\n", "dos.sh");
  EXPECT_EQ(read_launch_script("dos.sh", {}).flags, (Words{"--a", "1", "--b", "x y"}));
}

TEST_F(LaunchScripts, AreRefusedWithWhatTheySaid) {
  EXPECT_NE(refused("echo 'Checkpoint path does not exist: /ck'\nexit 7\ntorchrun p.py --a 1\n")
                .find("(bash ends with 7); expected"),
            std::string::npos);
  EXPECT_NE(refused("echo no such place\nexit 7\n").find("no such place"), std::string::npos);
  EXPECT_NE(refused("torchrun p.py --a 'x\n").find("quote"), std::string::npos);
  EXPECT_NE(refused("").find("starts no training"), std::string::npos);
  EXPECT_NE(refused(std::string("a\0b", 3)).find("zero bytes"), std::string::npos);
  EXPECT_THROW(read_launch_script("/no/such.sh", {}), base::Error);
  EXPECT_THROW(read_launch_script(".", {}), base::Error);
}

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
       {std::string("pretrain_gpt.py --num-experts 8 --moe-router-topk 2") + kModel,
        std::string("pretrain_gpt.py --apply-layernorm-1p") + kModel, std::string("pretrain_bert.py") + kModel}) {
    write("torchrun " + text);
    EXPECT_THROW(parse_run_arguments({"--from-megatron-args", "run.sh"}), base::Error) << text;
    const RunArguments told = parse_run_arguments({"--from-megatron-args", "run.sh", "--ignore-unknown-flags"});
    EXPECT_EQ(told.config.model.num_layers, 8);
    EXPECT_FALSE(told.notes.empty());
  }
  write(std::string("torchrun pretrain_gpt.py --wandb-project x --fantasy-knob 3 --ckpt-format torch") + kModel);
  const RunArguments read = parse_run_arguments({"--from-megatron-args", "run.sh"});
  EXPECT_EQ(read.notes.size(), 3u);
  EXPECT_THROW(parse_run_arguments({"--num-experts", "8"}), base::Error);
  EXPECT_THROW(parse_run_arguments({"--fantasy-knob", "8"}), base::Error);
  EXPECT_EQ(parse_run_arguments({"--fantasy-knob", "8", "--ignore-unknown-flags"}).notes.size(), 1u);
}

}  // namespace metroplex::apps
