// Resolves run.device and run.backend on a machine. Like PyTorch, a run uses a GPU if there is one. A run with
// explicit GPUs never falls back to the CPU.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace metroplex::config {

// The machine as visible to the calling process.
struct Machine {
  int64_t num_gpus = 0;
  std::string no_gpu = "no GPU was found";  // why num_gpus is 0
  std::string launcher;                     // launcher that started this process as one rank; empty: none
  int64_t local_ranks = 1;                  // on this machine
  int64_t local_rank = 0;                   // only with a launcher
  bool shares_gpus = false;                 // METROPLEX_SHARE_GPUS=1: several NCCL ranks may use one GPU
};

struct DeviceChoice {
  Backend backend;   // threads, gloo or nccl
  int64_t gpu = -1;  // of the ranks in this process; -1: CPU
};

// Slurm and Open MPI may expose to each process only its own GPU. A single visible GPU therefore counts as the rank's
// own, and NCCL rejects ranks that share it. Throws base::Error("config", ...) if required GPUs are missing. Requires
// that the rules about run hold.
DeviceChoice choose_device(const Run& run, const Machine& machine);

}  // namespace metroplex::config
