// What a backend provides for one communicator, seen from one rank. Callers use collectives.h and p2p.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace metroplex::comm {

enum class ReduceOp { sum, max };

// An operation under way. Between its start and the return of wait() none of its tensors may be written, and its
// outputs may not be read. wait() throws base::Error("comm", ...) naming the rank that failed and why.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};
using PendingPtr = std::shared_ptr<Pending>;  // null: already done

// One p2p operation of a batch; `peer` is an index in the group. Between two ranks the operations of one channel meet
// in the order of their issue; channels (0 and 1) are independent of each other.
struct P2pOp {
  bool is_send = false;
  at::Tensor tensor;
  int peer = 0;
  int channel = 0;
};

// All tensors are contiguous. Every rank of the group calls the same operations in the same order (p2p: each pair
// for itself). Sums are taken in group order, so every rank gets the same bits.
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;
  virtual PendingPtr all_reduce(at::Tensor tensor, ReduceOp op) = 0;  // in place
  virtual PendingPtr all_gather(at::Tensor out, at::Tensor in) = 0;   // out: size() x in, in group order
  virtual PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) = 0;  // in: size() x out
  virtual PendingPtr broadcast(at::Tensor tensor, int root) = 0;                      // root: index in the group
  // Rows (dim 0) of `in` are split by `in_splits` over the members, `out` receives `out_splits` rows from each.
  virtual PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits,
                                std::vector<int64_t> in_splits) = 0;
  // Issues the operations of a batch together: none waits for another one of the same batch.
  virtual PendingPtr batch_p2p(std::vector<P2pOp> ops) = 0;
  virtual void barrier() = 0;
  // Member 0 gets in `out` what all brought, size() x `in` in group order; elsewhere `out` is undefined. `index` and
  // `size` are the caller's in the group.
  virtual PendingPtr gather(at::Tensor out, at::Tensor in, int index, int size);
};

}  // namespace metroplex::comm
