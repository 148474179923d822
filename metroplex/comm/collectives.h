// Collectives on a group. A group of one is a no-op (all_gather and reduce_scatter return their input).
// The _async forms return a Handle: see Pending for what may be touched before wait().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/backends/backend.h"
#include "comm/group.h"

namespace metroplex::comm {

class Handle {
 public:
  Handle() = default;
  explicit Handle(PendingPtr pending) : pending_(std::move(pending)) {}
  void wait() {
    if (pending_) pending_->wait();
    pending_.reset();
  }

 private:
  PendingPtr pending_;
};

void all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::sum);
[[nodiscard]] Handle all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::sum);

// Concatenation of every member's `x` along `dim`, in group order. All members hold the same shape.
at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group);
// Along dim 0 into `out` ([size*n, ...] for x [n, ...]); both contiguous.
[[nodiscard]] Handle all_gather_into_async(const at::Tensor& out, const at::Tensor& x, const Group& group);

// The own slice along `dim` of the sum over members. x.size(dim) is a multiple of the group's size.
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group);
[[nodiscard]] Handle reduce_scatter_into_async(const at::Tensor& out, const at::Tensor& x, const Group& group);

void broadcast(const at::Tensor& tensor, int root, const Group& group);
// Rows of x go to the members by in_splits, and out_splits rows come from each, in group order.
at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& out_splits,
                      const std::vector<int64_t>& in_splits, const Group& group);
// x is contiguous, and lives until wait(); the result may be read from then on. A group of one: x itself.
struct Exchange {
  at::Tensor out;
  Handle handle;
  at::Tensor wait() {
    handle.wait();
    return out;
  }
};
[[nodiscard]] Exchange all_to_all_async(const at::Tensor& x, const std::vector<int64_t>& out_splits,
                                        const std::vector<int64_t>& in_splits, const Group& group);
// Rows that move by counts on the device, so that no size reaches the host: GroupBackend::exchange_rows says what is
// delivered, and when `overflow` is set. Its backward is itself: gradients of out.rows with out.counts as they came
// are `in`, and the counts that come are those that had been sent. A group of one copies.
[[nodiscard]] Handle exchange_rows_async(const CountedRows& out, const CountedRows& in, int64_t capacity,
                                         const at::Tensor& overflow, const Group& group);
// Rows to the slots that want them and, to be added up, back to their owners: GroupBackend::fetch_rows and
// return_rows. A group of one wants none.
[[nodiscard]] Handle fetch_rows_async(const at::Tensor& out, const at::Tensor& in, const at::Tensor& owners,
                                      const Group& group);
[[nodiscard]] Handle return_rows_async(const at::Tensor& sum, const at::Tensor& in, const at::Tensor& owners,
                                       const Group& group);
void barrier(const Group& group);

// The own slice along `dim` of a tensor that every member holds whole. No communication.
at::Tensor own_slice(const at::Tensor& x, int64_t dim, const Group& group);

// Every member's bytes, in group order; lengths may differ. Everybody gets everything: for few members or short
// texts.
std::vector<std::string> all_gather_strings(const std::string& mine, const Group& group);
// The same on member 0; empty elsewhere.
std::vector<std::string> gather_strings(const std::string& mine, const Group& group);
// Member 0's bytes on all.
std::string broadcast_string(const std::string& text, const Group& group);

// Point to point between the ranks of a group: the transfers of one call are issued together. pipeline/executor makes
// of it what its table says. Forward and backward of a pipeline use channels of their own, so two ranks that are each
// other's both neighbours never mix them up.

// Tensors must be contiguous. An empty batch moves nothing, and still is a call of the group, whose first one is a
// meeting of all its ranks over NCCL: who has nothing to say in a round that others speak in calls with an empty one.
[[nodiscard]] Handle batch_p2p(std::vector<P2pOp> ops, const Group& group);

inline constexpr int kForwardChannel = 0;
inline constexpr int kBackwardChannel = 1;

}  // namespace metroplex::comm
