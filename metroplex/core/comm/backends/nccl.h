// Ranks as processes with one GPU each, over c10d's NCCL. An operation starts when the caller's current stream
// reaches it, and runs on the stream of its communicator. It overlaps with work that the caller enqueues next. wait()
// makes the current stream wait, not the host. Host tensors and failure reports go through the accompanying gloo
// context, which needs no full mesh. exchange_rows is an all-to-all of equal capacity, which has not been run over
// NCCL.
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
  // Collective over spec.ranks: all members request their groups in the same order.
  virtual std::shared_ptr<GroupBackend> backend(const GroupSpec& spec) = 0;
  // Call it on every normal exit, after the last operation of all ranks.
  virtual void shutdown() = 0;
};

// `control` must outlive the result. Throws base::Error("comm", ...) if this build or machine has no NCCL or no such
// GPU.
std::shared_ptr<NcclContext> make_nccl_context(GlooContext& control, int device_index,
                                               std::chrono::milliseconds timeout);

}  // namespace metroplex::comm
