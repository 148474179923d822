// Interface of one communicator as seen from one rank. Callers use collectives.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace metroplex::comm {

enum class ReduceOp { sum, max };

// An operation in flight. From its start until wait() returns, none of its tensors may be written and its outputs may
// not be read. wait() throws base::Error("comm", ...) with the failed rank and the cause.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};
using PendingPtr = std::shared_ptr<Pending>;  // null: already complete

// One p2p operation of a batch; `peer` is an index in the group. Operations between two ranks on one channel match in
// issue order. Channels 0 and 1 are independent.
struct P2pOp {
  bool is_send = false;
  at::Tensor tensor;
  int peer = 0;
  int channel = 0;
};

// Rows to or from the members of a group, packed in group order. `counts` [members] int64, on the device of the rows,
// holds the number of rows per member. `rows` [N, ...] may have more rows than the sum of counts.
struct CountedRows {
  at::Tensor rows, counts;
};

// All tensors are contiguous. Every rank of the group calls the same operations in the same order; p2p operations
// only need a matching order per pair. Sums are taken in group order, so every rank gets the same bits.
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;
  virtual PendingPtr all_reduce(at::Tensor tensor, ReduceOp op) = 0;  // in place
  virtual PendingPtr all_gather(at::Tensor out, at::Tensor in) = 0;   // out: size() x in, in group order
  virtual PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) = 0;  // in: size() x out
  virtual PendingPtr broadcast(at::Tensor tensor, int root) = 0;                      // root: index in the group
  // Sends in_splits[i] rows (dim 0) of `in` to member i; `out` receives out_splits[i] rows from member i.
  virtual PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits,
                                std::vector<int64_t> in_splits) = 0;
  // Moves rows by counts that stay on the device. A sender delivers at most the first `capacity` of the in.counts[j]
  // rows for member j. A receiver accepts rows in group order until out.rows is full. out.counts receives the numbers
  // of delivered rows; rows of out.rows after their sum are unspecified. `capacity` and the shape of a row must be
  // equal on all members; the lengths of rows may differ.
  //
  // `overflow` is one int32 on the device. wait() sets it to 1 on a receiver that missed rows, and on a sender with
  // more than `capacity` rows for a member. It is never cleared, so concurrent exchanges may share it. Counts must be
  // >= 0. Counts whose sum exceeds the length of in.rows are truncated and set the sender's overflow. If nothing
  // overflowed, passing the received `out` as `in` returns the rows to their senders.
  //
  // The default implementation is an all-to-all of `capacity` rows per pair, plus one of the counts. It allocates 2 x
  // members x capacity rows while in flight.
  virtual PendingPtr exchange_rows(CountedRows out, CountedRows in, int64_t capacity, at::Tensor overflow);
  // Copies rows to the slots that request them; the owners stay on the device. Every member has h rows (dim 0 of
  // `in`) and s slots (dim 0 of `out`). Row r of member m has number m h + r. owners [size() s] int32, equal on all
  // members, holds the requested row number for each slot, member by member. A negative number requests no row; the
  // content of that slot is unspecified. No slot requests a row of its own member, and no two slots of a member
  // request the same row. `index` is the caller's index in the group.
  //
  // The default implementation on the CPU relays rows by messages: members that already have a row pass it on
  // (relay_hops). On a device it is an all-to-all of s rows per pair, which allocates 2 x size() x s rows.
  virtual PendingPtr fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int index);
  // Reverse of fetch_rows. Adds each slot's row of `in` [s, ...] to the row of sum [h, ...] that owns the slot, if
  // this member holds it. Slots are added in ascending order.
  virtual PendingPtr return_rows(at::Tensor sum, at::Tensor in, at::Tensor owners, int index);
  // Issues all operations of a batch together; none waits for another one of the same batch.
  virtual PendingPtr batch_p2p(std::vector<P2pOp> ops) = 0;
  virtual void barrier() = 0;
  // Gathers the `in` of all members into `out` on member 0 (size() x in, in group order). `out` is undefined on other
  // members. `index` and `size` are the caller's.
  virtual PendingPtr gather(at::Tensor out, at::Tensor in, int index, int size);
};

}  // namespace metroplex::comm
