// The number of ranks that a launcher starts, read from the words of its command.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::megatron {

struct LauncherRanks {
  int64_t count = 0;    // all nodes together; 0: no launcher, or an unknown count
  std::string unknown;  // the launcher and the option that hide the count, "torchrun --nproc-per-node=gpu"
};

// `words`: the command up to its .py program. The innermost launcher that states a count decides. Wrappers (numactl,
// bash, singularity, ...) contribute nothing. Words "NAME=VALUE" are environment variables, words
// "metroplex-file:PATH=TEXT" files that options name. `slurm_options`: the words of the script's #SBATCH lines.
LauncherRanks count_ranks(const std::vector<std::string>& words, const std::vector<std::string>& slurm_options);

std::vector<std::string> read_slurm_options(const std::string& script);

// Bash commands that set SLURM_NNODES and the like outside of a Slurm job, as Slurm does in the job of a script with
// these options.
std::string slurm_variables(const std::vector<std::string>& slurm_options);

// The options of the sbatch or salloc in a command.
std::vector<std::string> job_options(const std::vector<std::string>& words);

// True for modules of python -m that start another program (torch.distributed.run).
bool is_launcher_module(const std::string& name);

// True for the .py files of torch that start another program.
bool is_launcher_file(const std::string& path);

}  // namespace metroplex::megatron
