// Collectives on a group. In a group of one they are no-ops (all_gather and reduce_scatter return their input).
// The _async forms return a Handle; Pending in backends/backend.h lists which tensors may be accessed before wait().
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

// Concatenates `x` of all members along `dim`, in group order. `x` has the same shape on all members.
at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group);
// Gathers along dim 0 into `out` ([size*n, ...] for x [n, ...]). Both tensors are contiguous.
[[nodiscard]] Handle all_gather_into_async(const at::Tensor& out, const at::Tensor& x, const Group& group);

// Returns this member's shard along `dim` of the sum over members. x.size(dim) must be a multiple of the group size.
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group);
[[nodiscard]] Handle reduce_scatter_into_async(const at::Tensor& out, const at::Tensor& x, const Group& group);

void broadcast(const at::Tensor& tensor, int root, const Group& group);
// Sends in_splits[i] rows of x to member i and receives out_splits[i] rows from it. Rows are packed in group order.
at::Tensor all_to_all(const at::Tensor& x, const std::vector<int64_t>& out_splits,
                      const std::vector<int64_t>& in_splits, const Group& group);
// x must be contiguous and stay unmodified until wait(); `out` may be read after wait(). In a group of one `out` is
// x.
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
// Moves rows by counts that stay on the device, so no size is copied to the host. GroupBackend::exchange_rows
// specifies which rows are delivered and when `overflow` is set. The operation is its own backward: pass the gradient
// of out.rows with out.counts as `in`. The counts received then equal the counts sent in forward. A group of one
// copies the rows.
[[nodiscard]] Handle exchange_rows_async(const CountedRows& out, const CountedRows& in, int64_t capacity,
                                         const at::Tensor& overflow, const Group& group);
// Copies owned rows to the slots that request them, and adds slots back into the owned rows. See
// GroupBackend::fetch_rows and return_rows. In a group of one no slot requests a row.
[[nodiscard]] Handle fetch_rows_async(const at::Tensor& out, const at::Tensor& in, const at::Tensor& owners,
                                      const Group& group);
[[nodiscard]] Handle return_rows_async(const at::Tensor& sum, const at::Tensor& in, const at::Tensor& owners,
                                       const Group& group);
void barrier(const Group& group);

// Returns this member's shard along `dim` of a tensor that every member holds in full. No communication.
at::Tensor select_shard(const at::Tensor& x, int64_t dim, const Group& group);

// Returns the bytes of every member, in group order; lengths may differ. Every member receives all texts, so use it
// for few members or short texts.
std::vector<std::string> all_gather_strings(const std::string& mine, const Group& group);
// The same on member 0; returns an empty vector on other members.
std::vector<std::string> gather_strings(const std::string& mine, const Group& group);
// Returns the bytes of member 0 on all members.
std::string broadcast_string(const std::string& text, const Group& group);

// Point-to-point transfers between the ranks of a group. The transfers of one call are issued together. Forward and
// backward of a pipeline use separate channels. Two ranks that are both neighbors of each other (pipeline size 2)
// therefore never mix them up.
//
// Tensors must be contiguous. An empty batch moves nothing but still counts as a call of the group. Over NCCL all
// ranks of a group must take part in its first call, so a rank without transfers calls this with an empty batch.
[[nodiscard]] Handle batch_p2p(std::vector<P2pOp> ops, const Group& group);

inline constexpr int kForwardChannel = 0;
inline constexpr int kBackwardChannel = 1;

}  // namespace metroplex::comm
