// Launch scripts in the form of Megatron's examples, read by a trial run of bash.
#include "megatron/launch_script.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "support/launch_scripts.h"

namespace metroplex::megatron::launch_script_test {

using test::LaunchScripts;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

static Words words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

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

// Each of these commands is longer than what one write to a pipe is sure to keep together.
TEST_F(LaunchScripts, StartLongCommandsAtOnce) {
  const std::string text(5000, 'x');
  for (int tries = 0; tries < 3; ++tries) {
    const LaunchScript script = read(R"SH(LONG=$(printf '%5000s' | tr ' ' x)
for i in 1 2 3 4; do other $i "$LONG" {1..90} | another $i {1..90} "$LONG" & done
torchrun p.py --a "$LONG" --b $'two\nlines' {1..100} | other "$LONG" {1..90} | another "$LONG"
wait
)SH");
    ASSERT_EQ(script.flags.size(), 104u);
    EXPECT_EQ(script.flags[1], text);
    EXPECT_EQ(script.flags[3], "two\nlines");
    EXPECT_EQ(script.flags[103], "100");
  }
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

}  // namespace metroplex::megatron::launch_script_test
