// Where the ranks of a process compute and how they talk: what run.device and run.backend leave to the machine. As in
// PyTorch a GPU is used where there is one; a run that asked for GPUs never falls back to the CPU.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace metroplex::config {

// What the calling process sees.
struct Machine {
  int64_t num_gpus = 0;
  std::string no_gpu = "no GPU was found";  // why num_gpus is 0
  std::string launcher;                     // that started this process as one rank; empty: none did
  int64_t local_ranks = 1;                  // of this machine
  int64_t local_rank = 0;                   // with a launcher
};

struct DeviceChoice {
  Backend backend;   // threads, gloo or nccl
  int64_t gpu = -1;  // of this process' ranks; -1: the CPU
};

// Slurm and Open MPI may show every process its own GPU alone: a single one then counts as the rank's own, and NCCL
// refuses ranks that share it. Throws base::Error("config", ...) where GPUs are asked for and are not there.
// Requires: no violations of the rules about run.
DeviceChoice choose_device(const Run& run, const Machine& machine);

}  // namespace metroplex::config
