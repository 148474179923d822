// The number of ranks that a launcher starts, from the words of its command.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::megatron {

struct LauncherRanks {
  int64_t count = 0;    // on all nodes; 0: no launcher, or an unknown count
  std::string unknown;  // launcher and option of an unknown count: "torchrun --nproc-per-node=gpu"
};

// `words`: the command up to its .py program. The innermost launcher with a count determines the result. Wrappers
// (numactl, bash, singularity, ...) are ignored. Words "NAME=VALUE" are environment variables; words
// "metroplex-file:PATH=TEXT" are files named by options. `slurm_options`: the words of the script's #SBATCH lines.
LauncherRanks count_ranks(const std::vector<std::string>& words, const std::vector<std::string>& slurm_options);

std::vector<std::string> read_slurm_options(const std::string& script);

// Returns Bash commands that set SLURM_NNODES and similar variables outside a Slurm job, as Slurm does in a job with
// these options.
std::string slurm_variables(const std::vector<std::string>& slurm_options);

// Returns the first task of a job array with these options: "1" for --array=1-3; empty without an array.
std::string first_array_task(const std::vector<std::string>& slurm_options);

// Returns the options of sbatch or salloc in a command.
std::vector<std::string> job_options(const std::vector<std::string>& words);

// Whether the module of python -m starts another program (torch.distributed.run).
bool is_launcher_module(const std::string& name);

bool is_launcher_file(const std::string& path);

}  // namespace metroplex::megatron
