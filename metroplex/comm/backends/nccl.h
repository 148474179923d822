// Ranks as processes with one GPU each, over c10d's NCCL. An operation begins when the caller's current stream has
// come to it and runs on its communicator's own stream, beside what the caller enqueues next; wait() makes the
// caller's current stream wait for it, not the host. Tensors in host memory, and the telling of failures, go through
// the gloo context that comes along, which needs no full mesh. exchange_rows is an all-to-all of equal capacity, or
// (GroupSpec::nvshmem) reads symmetric memory; neither has been run over NCCL.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/backends/gloo.h"

namespace metroplex::comm {

class NcclContext {
 public:
  virtual ~NcclContext() = default;
  // Collective over `ranks`: every member asks for its groups in the same order.
  virtual std::shared_ptr<GroupBackend> backend(const GroupSpec& spec) = 0;
  // On every normal exit, after the last operation of all ranks.
  virtual void shutdown() = 0;
};

// `control` outlives the result. Throws base::Error("comm", ...) where this build or machine has no NCCL or no such
// GPU.
std::shared_ptr<NcclContext> make_nccl_context(GlooContext& control, int device_index,
                                               std::chrono::milliseconds timeout);

}  // namespace metroplex::comm
