// NVSHMEM symmetric memory for SymmetricRows, through libtorch's symm_mem operators. This code has not been run,
// because it needs a machine with several GPUs.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>

#include "comm/backends/symmetric_rows.h"

namespace metroplex::comm {

struct NvshmemGroup {
  std::string key;  // unique per group in this process
  int index = 0, size = 1;
  int rank = 0, world_size = 1;
  c10::intrusive_ptr<c10d::Store> store;  // of all ranks
  c10::Device device = c10::kCPU;
};

// The group must span all ranks of the run, because NVSHMEM allocations are collective over all ranks. `calls` must
// have all_gather and host_max. Throws base::Error("comm", ...) if this build of libtorch has no kernel for it.
SymmetricRows::Calls with_nvshmem(SymmetricRows::Calls calls, const NvshmemGroup& group);

}  // namespace metroplex::comm
