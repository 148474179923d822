// Numbers of ranks from variables, files and host lists, and commands that start by another path than a .py file
// after a launcher.
#include "megatron/launch_script.h"

#include <cstdlib>

#include "support/launch_scripts.h"

namespace metroplex::megatron::launch_ranks_test {

using test::LaunchScripts;
using Words = std::vector<std::string>;
using Cases = std::vector<std::pair<std::string, int64_t>>;

static const char* const kTrain = " p.py --a 1\n";

static void expect_ranks(const LaunchScript& script, int64_t ranks, const std::string& text) {
  EXPECT_EQ(script.flags, (Words{"--a", "1"})) << text;
  EXPECT_EQ(script.ranks, ranks) << text;
  EXPECT_EQ(script.unknown_ranks, "") << text;
}

TEST_F(LaunchScripts, CountRanksOfVariables) {
  const Cases launchers = {
      {"export PET_NPROC_PER_NODE=4 PET_NNODES=2\ntorchrun", 8},
      {"PET_NPROC_PER_NODE=4 torchrun --nnodes 2", 8},
      {"PET_NPROC_PER_NODE=4 torchrun --nproc-per-node 2", 2},
      {"env PET_NPROC_PER_NODE=4 torchrun", 4},
      {"docker run -e PET_NNODES=3 image torchrun --nproc_per_node 2", 6},
      {"PET_NPROC_PER_NODE=4; torchrun", 1},
      {"export CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --nproc-per-node gpu", 4},
      {"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=auto --nnodes 2", 4},
      {"CUDA_VISIBLE_DEVICES=0,1,2 deepspeed", 3},
      {"CUDA_VISIBLE_DEVICES=0,1,2 deepspeed --num_gpus 2", 2},
      {"WORLD_SIZE=8 RANK=0 python", 8},
      {"export WORLD_SIZE=8\nsrun python", 8},
      {"export WORLD_SIZE=8\ntorchrun", 1},
      {"torchrun --nnode 2 --nproc_per_node 4", 8},
  };
  for (const auto& [text, ranks] : launchers) expect_ranks(read(text + kTrain), ranks, text);
  EXPECT_NE(read(std::string("PET_NNODES=1:4 torchrun") + kTrain).unknown_ranks.find("PET_NNODES=1:4"),
            std::string::npos);
}

TEST_F(LaunchScripts, CountRanksOfHosts) {
  write("# the cluster\nh1 slots=4\n\nh2 slots=2 # small\n", "slots");
  write("h1:4\nh2:4\n", "colons");
  write("h1\nh2\n", "names");
  write("compute_environment: LOCAL_MACHINE\nnum_machines: 2\nnum_processes: 16\n", "accelerate.yaml");
  write("{\"num_machines\": 1, \"num_processes\": 2}\n", "accelerate.json");
  const Cases launchers = {
      {"deepspeed --include localhost:0,1", 2},
      {"deepspeed --include=\"h1:0,1@h2:2,3,4\"", 5},
      {"deepspeed -i h1:3", 1},
      {"deepspeed --hostfile slots", 6},
      {"deepspeed -H slots --num_nodes 1", 4},
      {"deepspeed --hostfile=slots --num_gpus 2", 4},
      {"deepspeed --hostfile slots --include h2", 2},
      {"deepspeed --hostfile slots --exclude h1:0,2", 4},
      {"deepspeed --hostfile slots --exclude h1", 2},
      {"printf 'a slots=8\\nb slots=8\\n' > made; deepspeed --hostfile made", 16},
      {"mpirun -H h1:4,h2:4 python", 8},
      {"mpirun --host h1,h2,h3 python", 3},
      {"mpirun --hostfile slots python", 6},
      {"mpiexec -f colons python", 8},
      {"mpirun -machinefile slots -np 3 python", 3},
      {"mpirun -N 4 --hostfile names python", 8},
      {"mpirun --npernode 2 -H h1,h2 python", 4},
      {"mpirun --map-by ppr:8:node --hostfile names python", 16},
      {"horovodrun -H h1:4,h2:4 python", 8},
      {"horovodrun -np 4 -H h1:4,h2:4 python", 4},
      {"accelerate launch --config_file accelerate.yaml", 16},
      {"accelerate launch --config_file=accelerate.json", 2},
      {"accelerate launch --config_file accelerate.yaml --num_processes 4", 4},
  };
  for (const auto& [text, ranks] : launchers) expect_ranks(read(text + kTrain), ranks, text);
  for (const std::string text :
       {"deepspeed --include h1", "deepspeed --hostfile slots --include h1:0-3",
        "deepspeed --hostfile slots --exclude h9", "deepspeed --hostfile absent", "mpirun --hostfile names python",
        "mpirun --hostfile absent python", "accelerate launch --config_file absent.yaml",
        "scontrol show x > made; deepspeed --hostfile made"}) {
    const LaunchScript script = read(text + kTrain);
    EXPECT_EQ(script.ranks, 0) << text;
    EXPECT_NE(script.unknown_ranks, "") << text;
  }
}

TEST_F(LaunchScripts, ReadModules) {
  for (const char* launcher :
       {"python -m", "torchrun --nproc_per_node 2 -m", "python -m torch.distributed.run --module",
        "accelerate launch --num_processes 2 -m"}) {
    const LaunchScript script = read(std::string(launcher) + " megatron.pretrain_gpt --a 1\n");
    EXPECT_EQ(script.program, "megatron/pretrain_gpt.py") << launcher;
    EXPECT_EQ(script.flags, (Words{"--a", "1"})) << launcher;
  }
  EXPECT_EQ(read("ssh host 'torchrun -m pretrain_gpt --a 1 '\n").flags, (Words{"--a", "1"}));
  EXPECT_EQ(read("python -m pip install --upgrade a b c\ntorchrun p.py --a 1\n").program, "p.py");
  EXPECT_EQ(read("python -m tools.preprocess_train_data --x 1 --y 2\ntorchrun -m pretrain_gpt --a 1\n").program,
            "pretrain_gpt.py");
}

TEST_F(LaunchScripts, FollowScriptsThatStartByPath) {
  std::filesystem::create_directories("deep");
  write("cd \"$(dirname \"$0\")\"\n. ./settings.sh\ntorchrun --nproc_per_node 4 p.py --a $A \"$@\"\n",
        "deep/train.sh");
  write("A=1\n", "deep/settings.sh");
  write("#!/usr/bin/env bash\ntorchrun --nproc_per_node 4 p.py --a 1 $1\n", "train");
  for (const char* start :
       {"deep/train.sh", "./deep/train.sh", "bash deep/train.sh", "srun -N 1 deep/train.sh", "./train",
        "nohup ./train &", "timeout 3h ./train > log 2>&1", "time $PWD/train",
        "cat > job.sh << 'E'\ntorchrun --nproc_per_node 4 p.py --a 1\nE\nchmod +x job.sh\n./job.sh"}) {
    expect_ranks(read(std::string(start) + "\n"), 4, start);
  }
  EXPECT_EQ(read("./deep/train.sh --b 2\n").flags, (Words{"--a", "1", "--b", "2"}));
  // A wrapper with the program's words, and a variable of the inner script.
  write("#!/bin/sh\nB=2\nexec torchrun --nproc_per_node 2 \"$@\"\n", "wrapper");
  const LaunchScript script = read("B=3\n./wrapper p.py --a 1 --b $B\n./wrapper x.py\n");
  EXPECT_EQ(script.flags, (Words{"--a", "1", "--b", "3"}));
  EXPECT_EQ(script.ranks, 2);
}

TEST_F(LaunchScripts, FollowTextOnStandardInput) {
  const std::string train = "torchrun --nproc_per_node 4 p.py --a 1\n";
  for (const std::string& text : {"ssh host << E\n" + train + "E\n", "ssh host bash -s << E\n" + train + "E\n",
                                  "bash -s << E\n" + train + "E\n", "docker exec -i x bash << E\n" + train + "E\n",
                                  "qsub -l nodes=2 << E\n" + train + "E\n", "bsub << E\n" + train + "E\n",
                                  "sbatch -N 1 << 'E'\n#!/bin/bash\n" + train + "E\n",
                                  "echo '" + train + "' | bash\n", "parallel-ssh -H 'a b' -i '" + train + "'\n"}) {
    expect_ranks(read(text), 4, text);
  }
  EXPECT_EQ(read("bash << E\nA=2\nE\ntorchrun p.py --a ${A:-1}\n").flags, (Words{"--a", "1"}));
  // ssh -n preserves the hosts of the loop.
  EXPECT_EQ(read("printf 'a\\nb\\n' > hosts\nN=0\nwhile read -r h; do ssh -n $h x; N=$((N + 1)); done < hosts\n"
                 "torchrun p.py --a $N\n")
                .flags,
            (Words{"--a", "2"}));
}

TEST_F(LaunchScripts, AddTheWordsOfXargs) {
  EXPECT_EQ(read("echo --b 2 | xargs torchrun p.py --a 1\n").flags, (Words{"--a", "1", "--b", "2"}));
  EXPECT_NE(refused("echo --b 2 | xargs -n 1 torchrun p.py --a 1\n").find("(xargs in line 1"), std::string::npos);
  EXPECT_NE(refused("echo \"--b '2 3'\" | xargs torchrun p.py --a 1\n").find("(xargs in line 1"), std::string::npos);
}

// A job in its own file has the options of sbatch, which override those in the file.
TEST_F(LaunchScripts, SetTheVariablesOfASubmittedJob) {
  unsetenv("SLURM_JOB_ID");
  write(
      "#!/bin/bash\n#SBATCH -N 2   # nodes\n#SBATCH --gpus-per-node=4\n"
      "torchrun --nproc_per_node $SLURM_GPUS_PER_NODE --nnodes $SLURM_NNODES p.py --a 1\n",
      "job.sbatch");
  write("#SBATCH -N 3\n#SBATCH --ntasks-per-node=2\nsrun python p.py --a 1\n", "srun.sbatch");
  const Cases submissions = {
      {"sbatch job.sbatch", 8},
      {"sbatch -N 5 job.sbatch", 20},
      {"sbatch --nodes=5 ./job.sbatch x", 20},
      {"sbatch < job.sbatch", 8},
      {"sbatch srun.sbatch", 6},
      {"sbatch -N 1 srun.sbatch", 2},
      {"sbatch -N 3 --wrap 'torchrun --nproc_per_node 2 --nnodes $SLURM_NNODES p.py --a 1'", 6}};
  for (const auto& [text, ranks] : submissions) expect_ranks(read(text + "\n"), ranks, text);
  // A script that submits itself.
  for (const char* submit : {"sbatch -N 2 \"$0\" \"$@\"; exit", "exec sbatch -N 2 \"$0\" \"$@\""}) {
    const std::string text = std::string("if [ -z \"$SLURM_JOB_ID\" ]; then ") + submit +
                             "; fi\ntorchrun --nproc_per_node 4 --nnodes $SLURM_NNODES p.py --a $1\n";
    expect_ranks(read(text, {"1"}), 8, text);
  }
}

}  // namespace metroplex::megatron::launch_ranks_test
