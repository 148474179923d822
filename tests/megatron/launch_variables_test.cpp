// Variables of inner shells and of Slurm jobs, and the status of programs that a trial does not start.
#include "megatron/launch_script.h"

#include <cstdlib>

#include "support/launch_scripts.h"

namespace metroplex::megatron::launch_variables_test {

using test::LaunchScripts;
using Words = std::vector<std::string>;

static const char* const kJob = "torchrun --nproc_per_node ${NP:-2} p.py --lr ${LR:-1e-4}\n";

TEST_F(LaunchScripts, GiveAnInnerShellTheVariablesOfItsCommand) {
  write(kJob, "job.sh");
  write("#!/bin/bash\n" + std::string(kJob), "job");
  write("LR=5e-4\nNP=4\n", "variables");
  for (const std::string& command :
       Words{"env LR=5e-4 NP=4 bash job.sh",
             "env LR=5e-4 NP=4 ./job",
             "nice env LR=5e-4 NP=4 timeout 100 bash job.sh",
             "env LR=5e-4 NP=4 bash -c 'torchrun --nproc_per_node $NP p.py --lr ${LR:-1}'",
             "sudo -E LR=5e-4 NP=4 bash job.sh",
             "sbatch --export=ALL,LR=5e-4,NP=4 job.sh",
             "sbatch --export ALL,LR=5e-4,NP=4 job.sh",
             "srun --export=ALL,LR=5e-4,NP=4 bash job.sh",
             "mpirun -np 1 -x LR=5e-4 -x NP=4 bash job.sh",
             "mpiexec -genv LR 5e-4 -env NP 4 bash job.sh",
             "docker run --rm -e LR=5e-4 -e NP=4 image bash job.sh",
             "docker run --env-file variables image bash job.sh",
             "export LR=5e-4 NP=4; docker run -e LR -e NP image bash job.sh",
             "singularity exec --env LR=5e-4,NP=4 image bash job.sh",
             "export SINGULARITYENV_LR=5e-4 APPTAINERENV_NP=4; singularity exec i bash job.sh",
             "ssh host LR=5e-4 NP=4 bash job.sh",
             "ssh host 'cd . && LR=5e-4 NP=4 bash job.sh'",
             "pdsh -w n1 'export LR=5e-4 NP=4; bash job.sh'",
             "kubectl exec pod -- env LR=5e-4 NP=4 bash job.sh",
             "flux run --env=LR=5e-4 --env=NP=4 bash job.sh",
             "jsrun -E LR=5e-4 -ENP=4 bash job.sh",
             "enroot start -e LR=5e-4 -e NP=4 image bash job.sh",
             "bsub -env 'all,LR=5e-4,NP=4' bash job.sh",
             "qsub -v LR=5e-4,NP=4 job.sh",
             "env LR=5e-4 NP=4 sbatch job.sh",
             "LR=5e-4 NP=4 sbatch job.sh",
             "export LR=5e-4 NP=4; bash job.sh",
             "sbatch --export=ALL,LR=5e-4,NP=4 << 'E'\n" + std::string(kJob) + "E"}) {
    const LaunchScript script = read(command + "\n");
    EXPECT_EQ(script.flags, (Words{"--lr", "5e-4"})) << command;
    EXPECT_EQ(script.ranks, 4) << command;
  }
  for (const char* command :
       {"LR=5e-4; NP=4; bash job.sh", "export LR=5e-4 NP=4; env -i bash job.sh",
        "export LR=5e-4 NP=4; ssh h bash job.sh", "export LR=5e-4 NP=4; env -u LR -u NP bash job.sh",
        "export LR=5e-4 NP=4; sbatch --export=NONE job.sh",
        "docker run --label LR=5e-4 --label NP=4 image bash job.sh"}) {
    const LaunchScript script = read(std::string(command) + "\n");
    EXPECT_EQ(script.flags, (Words{"--lr", "1e-4"})) << command;
    EXPECT_EQ(script.ranks, 2) << command;
  }
}

TEST_F(LaunchScripts, GiveAnInnerShellTheVariablesOfItsRank) {
  unsetenv("SLURM_JOB_ID");
  write(
      "export WORLD_SIZE=\"${SLURM_NTASKS:?}\"\nexport RANK=\"${SLURM_PROCID:?}\"\nexport "
      "LOCAL=\"${SLURM_LOCALID:?}\"\n"
      "python p.py --a $LOCAL\n",
      "inner.sh");
  for (const char* text : {"#SBATCH --ntasks=4 --nodes=1\nsrun bash inner.sh\n", "srun -n 4 bash inner.sh\n",
                           "srun --ntasks=4 bash inner.sh\n"}) {
    const LaunchScript script = read(text);
    EXPECT_EQ(script.flags, (Words{"--a", "0"})) << text;
    EXPECT_EQ(script.ranks, 4) << text;
  }
  EXPECT_EQ(read("mpirun -np 4 bash -c 'python p.py --a $OMPI_COMM_WORLD_SIZE$OMPI_COMM_WORLD_RANK'\n").flags,
            (Words{"--a", "40"}));
}

TEST_F(LaunchScripts, ReadTheFirstTaskOfAJobArray) {
  unsetenv("SLURM_JOB_ID");
  unsetenv("SLURM_ARRAY_TASK_ID");
  const std::string seeds = "SEEDS=(0 11 22 33)\ntorchrun p.py --seed ${SEEDS[$SLURM_ARRAY_TASK_ID]}\n";
  for (const char* tasks : {"--array=1-3", "--array 1,3%1", "-a 1-9:2"}) {
    const LaunchScript script = read("#SBATCH " + std::string(tasks) + "\n" + seeds);
    EXPECT_EQ(script.flags, (Words{"--seed", "11"})) << tasks;
    EXPECT_NE(script.note.find("task 1 of the job array is read"), std::string::npos) << script.note;
  }
  setenv("SLURM_ARRAY_TASK_ID", "3", 1);
  EXPECT_EQ(read("#SBATCH --array=1-3\n" + seeds).flags, (Words{"--seed", "33"}));
  unsetenv("SLURM_ARRAY_TASK_ID");
}

TEST_F(LaunchScripts, AreRefusedIfTheIdOfAJobReachesAFlag) {
  unsetenv("SLURM_JOB_ID");
  const std::string error = refused("#SBATCH -N 1\ntorchrun p.py --seed $((SLURM_JOB_ID % 1000))\n");
  EXPECT_NE(error.find("--seed (SLURM_JOB_ID"), std::string::npos) << error;
  const LaunchScript script = read(
      "#SBATCH -N 1\nPORT=$((10000 + SLURM_JOB_ID % 1000))\n"
      "torchrun --master_port $PORT p.py --a 1 --save out/$SLURM_JOB_ID\n");
  EXPECT_EQ(script.flags, (Words{"--a", "1", "--save", "out/1000001"}));
  EXPECT_NE(script.note.find("1000001 is used for SLURM_JOB_ID"), std::string::npos) << script.note;
}

TEST_F(LaunchScripts, AreRefusedIfAStatusReachesAFlag) {
  const std::string train = "\ntorchrun p.py --b 1 --v $V\n";
  for (const std::string text :
       {"if command -v rocm-smi > /dev/null 2>&1; then V=1; fi", "which rocm-smi && V=1",
        "[ -x \"$(command -v rocm-smi)\" ] && V=1", "[ -x /opt/rocm/bin/rocm-smi ] && V=1", "type npu-smi && V=1",
        "python -c 'import flash_attn' && V=1 || V=2", "if ! python -c 'import flash_attn'; then V=1; fi",
        "python check.py\n[ $? -eq 0 ] && V=1", "python check.py\nif [[ $? != 0 ]]; then V=1; fi",
        "if ping -c1 host; then V=1; fi", "pip install x || exit 1; git diff --quiet || V=1",
        "python -c '\nimport x\n' \\\n  && V=1"}) {
    const std::string error = refused(text + train);
    EXPECT_EQ(error.find("[config] run.sh: depends on the output of a program: --v ("), 0u) << text << error;
  }
  for (const std::string& text : Words{"pip install x || exit 1", "python prepare.py && echo done", "mkdir x || V=1",
                                       "if nvidia-smi; then V=3; fi", "ping -c1 host || echo none"}) {
    EXPECT_EQ(read("V=3; " + text + train).flags, (Words{"--b", "1", "--v", "3"})) << text;
  }
}

TEST_F(LaunchScripts, NameScriptsOfUnknownText) {
  write("torchrun p.py --a 2 --b 3\n", "t.sh");
  const std::string note = read("envsubst < t.sh > u.sh\nbash u.sh\ntorchrun p.py --a 1\n").note;
  EXPECT_NE(note.find("the text of u.sh comes from envsubst in line 1"), std::string::npos) << note;
}

TEST_F(LaunchScripts, SayWhyNothingStarts) {
  const std::string swift = refused("megatron sft --model x\n");
  EXPECT_NE(swift.find("; megatron sft is a command of ms-swift, which is not supported"), std::string::npos)
      << swift;
  const std::string unread = refused("exec > >(tee log)\npython - << E\nos.system('torchrun x.py')\nE\n");
  EXPECT_EQ(unread.find("@not@run@"), std::string::npos) << unread;
  const std::string placeholder = refused("A=1\nCHECKPOINT_PATH=<Specify path>\ntorchrun p.py --a 1\n");
  EXPECT_NE(placeholder.find("the placeholder <Specify path> in line 2 needs a value"), std::string::npos)
      << placeholder;
  const std::string parallel = refused("parallel torchrun p.py --seed {} ::: 1 2\n");
  EXPECT_NE(parallel.find("GNU parallel starts one training run for each word"), std::string::npos) << parallel;
}

TEST_F(LaunchScripts, AttributeUnknownWordsToTheirFlag) {
  const std::string error = refused("A=$(jq .x f)\ntorchrun p.py --vocab-size 100 $A\n");
  EXPECT_NE(error.find("program: an argument (jq in line 1"), std::string::npos) << error;
}

TEST_F(LaunchScripts, ReadOtherLaunchers) {
  const LaunchScript inner = read("python launch.py torchrun --nproc_per_node 2 pretrain_gpt.py --a 1\n");
  EXPECT_EQ(inner.program, "pretrain_gpt.py");
  EXPECT_EQ(inner.flags, (Words{"--a", "1"}));
  EXPECT_EQ(inner.ranks, 2);
  EXPECT_EQ(read("ibrun -n 8 python p.py --a 1\n").ranks, 8);
  const LaunchScript two = read("mpiexec -n 1 python p.py --a 1 : -n 3 python p.py --a 1\n");
  EXPECT_EQ(two.flags, (Words{"--a", "1"}));
  EXPECT_EQ(two.ranks, 0);
  EXPECT_NE(two.unknown_ranks, "");
}

}  // namespace metroplex::megatron::launch_variables_test
