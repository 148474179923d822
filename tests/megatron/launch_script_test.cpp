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

TEST_F(LaunchScripts, AreFoundAfterAnyLauncher) {
  for (const char* text :
       {"exec torchrun --nproc-per-node=2 --nnodes=3 /opt/megatron/pretrain_gpt.py --a 1", "python3 p.py --a 1",
        "/opt/bin/torchrun --nproc_per_node 2 pretrain_gpt.py --a 1", "./pretrain_gpt.py --a 1", "--a 1",
        "CMD='torchrun --nproc_per_node 2 pretrain_gpt.py --a 1'; eval $CMD",
        "$EMPTY \"${NOTHING[@]}\" nohup numactl -N 0 torchrun --nproc_per_node gpu p.py --a 1 &> log &\nwait",
        "sbatch << EOF\n#!/bin/bash\nsrun -n 4 python pretrain_gpt.py --a 1\nEOF",
        "python tools/preprocess_data.py --x\ntorchrun pretrain_gpt.py --a 1",
        "python /x/torch/distributed/launch.py --nproc_per_node 4 pretrain_gpt.py --a 1"})
    EXPECT_EQ(read(std::string(text) + "\n").flags, (Words{"--a", "1"})) << text;
}

TEST_F(LaunchScripts, CountRanksOfTheInnermostLauncher) {
  const std::vector<std::pair<std::string, int64_t>> launchers = {
      {"torchrun", 1},
      {"torchrun --nproc_per_node 2", 2},
      {"torchrun --nproc-per-node=2 --nnodes=3 --node_rank 1", 6},
      {"python -m torch.distributed.run --nproc_per_node=4 -m", 4},
      {"python3.10 -u -m torch.distributed.launch --nproc_per_node 8 --nnodes 2", 16},
      {"python /x/torch/distributed/launch.py --nproc_per_node 4", 4},
      {"deepspeed --num_nodes 2 --num_gpus 4", 8},
      {"deepspeed --num_gpus=4", 4},
      {"accelerate launch --num_processes 8 --num_machines 2", 8},
      {"mpirun -np 8 python", 8},
      {"mpirun -np8 python", 8},
      {"mpiexec -n=8 python", 8},
      {"orterun -x PATH -c 8 python", 8},
      {"mpirun --np 8 nice -n 10 python", 8},
      {"mpirun -np 8 bash -c \"python $P\"", 8},
      {"srun -n8 python", 8},
      {"srun --ntasks=8 bash -c \"python -u $P\"", 8},
      {"srun -N 2 --ntasks-per-node=4 python", 8},
      {"srun -N2 --ntasks-per-node 4 -c 7 numactl -n 3 python", 8},
      {"srun --nodes=2 singularity exec image.sif torchrun --nproc_per_node 8 --nnodes 2", 16},
      {"srun -n 16 torchrun", 16},
      {"horovodrun -np 4 python", 4},
      {"ft_launcher --nproc_per_node=4 --nnodes 2", 8},
      {"python -m nvidia_resiliency_ext.fault_tolerance.launcher --nproc-per-node 4", 4},
      {"msrun --worker_num=8 --local_worker_num=4", 8},
      {"jsrun -n 2 -a 4 python", 8},
      {"jsrun -p 6 python", 6},
      {"flux run -N 2 --tasks-per-node=4 python", 8},
      {"flux run -n8 python", 8},
      {"sbatch -N 2 --ntasks-per-node 4 --wrap 'srun python $P'", 8},
      {"python", 0},
      {"nice -n 10 python", 0},
      {"ionice -c 2 -n 7 python", 0},
      {"numactl -n 3 python", 0},
      {"env X=1 timeout 100 taskset -c 0-7 python", 0},
      {"docker run -n 5 image python", 0},
  };
  for (auto [text, ranks] : launchers) {
    const size_t inside = text.find("$P");
    if (inside == std::string::npos) {
      text += " p.py --a 1";
    } else {
      text.replace(inside, 2, "p.py --a 1");
    }
    const LaunchScript script = read(text + "\n");
    EXPECT_EQ(script.flags, (Words{"--a", "1"})) << text;
    EXPECT_EQ(script.ranks, ranks) << text;
    EXPECT_EQ(script.unknown_ranks, "") << text;
  }
  EXPECT_EQ(
      read("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node 4 # each\nsrun python p.py --a 1\n").ranks, 8);
  EXPECT_EQ(read("#SBATCH -N 2\n##SBATCH -n 3\n#SBATCH --ntasks-per-node=4\nsrun -n 5 python p.py --a 1\n").ranks, 5);
}

TEST_F(LaunchScripts, NameALauncherOfUnknownRanks) {
  const std::vector<std::pair<std::string, std::string>> launchers = {
      {"torchrun --nproc-per-node=gpu", "torchrun --nproc-per-node=gpu"},
      {"torchrun --nproc_per_node auto --nnodes 2", "torchrun --nproc_per_node auto"},
      {"torchrun --nnodes=1:4 --nproc_per_node 2", "torchrun --nnodes=1:4"},
      {"torchrun --nnodes $UNSET_NODES --nproc_per_node 2", "torchrun --nnodes"},
      {"torchrun --nproc_per_node $(scontrol show x)", "(output of scontrol in line 1 of run.sh)"},
      {"deepspeed", "deepspeed"},
      {"deepspeed --hostfile h --num_gpus 8", "deepspeed --hostfile h"},
      {"accelerate launch", "accelerate"},
      {"mpirun --hostfile h python", "mpirun"},
      {"srun python", "srun"},
      {"srun --ntasks-per-gpu=1 python", "srun --ntasks-per-gpu=1"},
      {"N=$(nvidia-smi -L | wc -l); torchrun --nproc_per_node $N", "nvidia-smi in line 1 of run.sh"},
  };
  for (const auto& [text, launcher] : launchers) {
    const LaunchScript script = read(text + " p.py --a 1\n");
    EXPECT_EQ(script.flags, (Words{"--a", "1"})) << text;
    EXPECT_EQ(script.ranks, 0) << text;
    EXPECT_NE(script.unknown_ranks.find(launcher), std::string::npos) << text << ": " << script.unknown_ranks;
  }
}

TEST_F(LaunchScripts, PreferTrainingPrograms) {
  for (const char* other : {"tasks/main.py --task X --lr 2 --seed 3", "tools/checkpoint/convert.py --b 1 --c 2",
                            "eval_gpt.py --x 1 --y 2", "tools/run_text_generation_server.py --a 1 --b",
                            "preprocess_train_data.py --x 1 --y 2", "report.py --x 1 --y 2"}) {
    for (const char* training : {"pretrain_gpt.py", "examples/finetune.py", "/x/train_step.py", "sft_gpt.py"}) {
      const std::string first = std::string("torchrun ") + training + " --a 1\n";
      const std::string second = std::string("python ") + other + "\n";
      for (const std::string& text : {first + second, second + first}) {
        const LaunchScript script = read(text);
        EXPECT_EQ(script.program, training) << text;
        EXPECT_NE(script.note.find(training), std::string::npos) << script.note;
        EXPECT_NE(script.note.find(std::string(other).substr(0, std::string(other).find(' '))), std::string::npos);
      }
    }
  }
  const LaunchScript longer = read("torchrun pretrain_gpt.py --a 1\ntorchrun pretrain_gpt.py --a 1 --b 2\n");
  EXPECT_EQ(longer.flags.size(), 4u);
  EXPECT_NE(longer.note, "");
  EXPECT_EQ(read("for i in 1 2; do torchrun pretrain_gpt.py --a 1; done\n").note, "");
  std::vector<std::string> sent = to_words(longer);
  size_t at = 0;
  EXPECT_EQ(from_words(sent, at).note, longer.note);
}

// The script ends before its background processes, which hold only the record pipe of the trial.
TEST_F(LaunchScripts, WaitForBackgroundCommands) {
  for (const char* end :
       {"> log 2>&1 &", "&> log &", ">> log 2>> err < /dev/null &\ndisown", "> log 2>&1 &\necho $!"}) {
    EXPECT_EQ(read(std::string("nohup torchrun p.py --a 1 ") + end + "\n").flags, (Words{"--a", "1"})) << end;
  }
  EXPECT_EQ(read("{ torchrun p.py --a 1; } > log 2>&1 &\n").flags, (Words{"--a", "1"}));
}

// The folders of the program's source tree need not exist here.
TEST_F(LaunchScripts, GoOnWithoutAFolder) {
  for (const char* start :
       {"cd /missing && ", "cd /missing || exit 1\n", "pushd /missing && ", "cd /missing || { echo none; exit 1; }\n",
        "docker run image bash -c 'cd /missing && torchrun p.py --a 1'\nexit\n"}) {
    const LaunchScript script = read(std::string(start) + "torchrun p.py --a 1\n");
    EXPECT_EQ(script.flags, (Words{"--a", "1"})) << start;
    EXPECT_NE(script.note.find("does not exist on this machine"), std::string::npos) << start << script.note;
  }
  EXPECT_EQ(read("cd /\ntorchrun p.py --a 1\n").note, "");
  // For existing folders the result is that of bash.
  EXPECT_EQ(read("cd /missing 2> /dev/null && A=1 || A=2\ntorchrun p.py --a $A\n").flags, (Words{"--a", "2"}));
  EXPECT_NE(refused("cd /missing && true\n").find("starts no training"), std::string::npos);
}

TEST_F(LaunchScripts, FollowTextForOtherMachines) {
  const std::string train = "torchrun --nproc_per_node 4 --nnodes 2 p.py --a 1";
  for (const std::string& text :
       {"ssh host \"cd /; " + train + "\"", "pdsh -f 8 -R ssh -w a,b '" + train + "'", "ssh -n host " + train}) {
    const LaunchScript script = read(text + "\n");
    EXPECT_EQ(script.flags, (Words{"--a", "1"})) << text;
    EXPECT_EQ(script.ranks, 8) << text;
  }
}

// Slurm sets these variables in the job of the script.
TEST_F(LaunchScripts, SetTheVariablesOfTheirSlurmOptions) {
  unsetenv("SLURM_JOB_ID");
  const std::string job =
      "#!/bin/bash\n#SBATCH --nodes=2 -c 6\n#SBATCH --ntasks-per-node 4\n#SBATCH --gres=gpu:a100:8\n";
  const LaunchScript script =
      read(job +
           "torchrun --nproc_per_node $SLURM_GPUS_ON_NODE --nnodes ${SLURM_NNODES:-1} p.py "
           "--a $((SLURM_JOB_NUM_NODES*10)) $SLURM_NTASKS $SLURM_NTASKS_PER_NODE $SLURM_CPUS_PER_TASK\n");
  EXPECT_EQ(script.flags, (Words{"--a", "20", "8", "4", "6"}));
  EXPECT_EQ(script.ranks, 16);
  EXPECT_EQ(
      read("#SBATCH -N 2-4 --gpus-per-node=h100:4\ntorchrun p.py --a \"$SLURM_NNODES\" $SLURM_GPUS_PER_NODE\n").flags,
      (Words{"--a", "", "4"}));
  setenv("SLURM_JOB_ID", "1", 1);
  EXPECT_EQ(read(job + "torchrun p.py --a \"$SLURM_NNODES\"\n").flags, (Words{"--a", ""}));
  unsetenv("SLURM_JOB_ID");
}

// Bash, run outside of a trial, gives the expected words.
TEST_F(LaunchScripts, ReadTheFilesThatTheyWrite) {
  write("old 1\nold 2\n", "real.txt");
  const std::vector<std::pair<std::string, Words>> scripts = {
      {"printf '%s\\n' n1 n2 n3 > hosts\nN=$(cat hosts | wc -l)", {"3"}},
      {"printf '%s\\n' a b > hosts; echo c >> hosts\nN=$(wc -l < hosts)", {"3"}},
      {"cat > args << EOF\n--x 192\n--lr 5e-4\nEOF\nN=$(cat args)", {"--x", "192", "--lr", "5e-4"}},
      {"echo a b | tee one two > /dev/null; echo c | tee -a one > /dev/null; N=\"$(cat one) $(< two)\"",
       {"a", "b", "c", "a", "b"}},
      {"echo 'X=7' > settings.sh; . ./settings.sh; N=$X", {"7"}},
      {"echo 'N=8' > $PWD/sub.sh; source \"$(dirname \"$0\")\"/sub.sh", {"8"}},
      {"printf 'a\\nb\\n' > list; mapfile -t M < list; N=${#M[@]}", {"2"}},
      {"printf 'a\\nb\\n' > list; N=0; while read -r line; do N=$((N + 1)); done < list", {"2"}},
      {"echo new >> real.txt; N=$(wc -l < real.txt)", {"3"}},
      {"echo new > real.txt; N=$(cat real.txt)", {"new"}},
      {"rm -f real.txt; echo new >> real.txt; N=$(cat real.txt)", {"new"}},
      {"rm -f real.txt; [[ -f real.txt ]] && N=there || N=absent", {"absent"}},
      {"[ -e made ] || touch made; [[ -f made && ! -s made ]] && N=empty", {"empty"}},
      {"cp real.txt a; mv a b; [ -f a ] && N=a || N=$(tail -n 1 b)", {"old", "2"}},
      {"echo 1 > x; set -o noclobber; { echo 2 > x; } 2> /dev/null; N=$(cat x)", {"1"}},
      {"f() { echo 5; }; f > x; N=$(head -n 1 x)", {"5"}},
      {"exec 5> x; echo 6 >&5; exec 5>&-; read -r N < x", {"6"}},
      {"N=$(echo 3 > /dev/stdout)", {"3"}},
      {"cat > x << EOF\n" + std::string(80000, 'z') + "\nEOF\nN=$(wc -c < x)", {"80001"}},
      {"echo 4 > a; ln -s a b; N=$(cat b)", {"4"}},
      {"bash -c 'echo 9 > x'; N=$(cat x)", {"9"}},
  };
  for (const auto& [text, expected] : scripts) {
    Words flags{"--n"};
    flags.insert(flags.end(), expected.begin(), expected.end());
    EXPECT_EQ(read(text + "\ntorchrun p.py --n $N\n").flags, flags) << text.substr(0, 200);
    EXPECT_EQ(files(), (Words{"real.txt", "run.sh"})) << text.substr(0, 200);
  }
  std::ifstream real("real.txt");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(real), {}), "old 1\nold 2\n");
}

TEST_F(LaunchScripts, NameTheProgramThatChangesAFile) {
  write("old 1\n", "real.txt");
  for (const std::string text :
       {"sed -i s/1/2/ real.txt", "sed -i.bak -e s/1/2/ real.txt", "sed --in-place s/1/2/ real.txt",
        "sed -Ei s/1/2/ real.txt", "perl -pi -e s/1/2/ real.txt", "awk -i inplace 1 real.txt",
        "patch real.txt x.diff", "sort -o real.txt real.txt", "curl -o real.txt http://x",
        "wget -O real.txt http://x", "python3 x > real.txt", "jq . x > real.txt", "sed p x >> real.txt",
        "sort x | tee real.txt"}) {
    const std::string error = refused(text + "\ntorchrun p.py --b 1 --x \"$(cat real.txt)\"\n");
    const std::string tool = text.substr(0, text.find(' '));
    EXPECT_NE(error.find("--x (" + tool), std::string::npos) << text << error;
    EXPECT_EQ(read(text + "\ncat real.txt\ntorchrun p.py --b 1\n").flags, (Words{"--b", "1"})) << text;
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

// Each of these commands is longer than the limit for an atomic write to a pipe.
TEST_F(LaunchScripts, StartLongCommandsAtOnce) {
  const std::string text(5000, 'x');
  for (int tries = 0; tries < 2; ++tries) {
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
                .find("(the exit status of bash is 7); expected"),
            std::string::npos);
  EXPECT_NE(refused("echo no such place\nexit 7\n").find("no such place"), std::string::npos);
  EXPECT_NE(refused("torchrun p.py --a 'x\n").find("quote"), std::string::npos);
  EXPECT_NE(refused("").find("starts no training"), std::string::npos);
  EXPECT_NE(refused(std::string("a\0b", 3)).find("zero bytes"), std::string::npos);
  EXPECT_THROW(read_launch_script("/no/such.sh", {}), base::Error);
  EXPECT_THROW(read_launch_script(".", {}), base::Error);
}

}  // namespace metroplex::megatron::launch_script_test
