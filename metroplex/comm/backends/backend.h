// What a backend provides for one communicator, seen from one rank. Callers use collectives.h.
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

// Rows for or from the members of a group, packed in group order without gaps: `counts`, [members] int64 on the
// device of the rows, says how many belong to each. `rows` [N, ...] may be longer than they are together.
struct CountedRows {
  at::Tensor rows, counts;
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
  // Rows move by counts that stay on the device. Of the in.counts[j] rows for member j the first `capacity` are
  // delivered, and of what comes to a member, in group order, as much as out.rows has room for. out.counts is filled
  // with the numbers of rows delivered; what lies in out.rows behind them is unspecified. `overflow`, one int32 on
  // the device, is set to 1 on a member to which rows were not delivered and on one that had more than `capacity` for
  // another, and is never cleared; wait() does it, so exchanges that are under way together may share it. Counts are
  // not negative and add up to the length of in.rows at most: what they say beyond is not sent, an overflow of the
  // sender. Without an overflow, rows go home when `out` as it came is handed in as `in`. `capacity` and the shape of
  // a row are the same on all members, lengths need not be.
  //
  // Unless a backend can do better: an all-to-all of `capacity` rows for each pair, beside one of the counts, which
  // needs room for 2 x members x capacity rows while it is under way. On symmetric memory only the rows move
  // (symmetric_rows.h).
  virtual PendingPtr exchange_rows(CountedRows out, CountedRows in, int64_t capacity, at::Tensor overflow);
  // Rows come to whoever wants them, by owners that stay on the device. Every member has h rows (dim 0 of `in`) and s
  // slots (dim 0 of `out`); row r of member m has number m h + r. owners [size() s] int32, the same on all members:
  // the number of the row for each slot of each member in turn; below 0: none, and what lies in that slot is
  // unspecified. No slot wants a row of its own member, and no two of one member the same.
  //
  // Unless a backend can do better: on the CPU by messages, of which those who have a row already pass it on (a tree,
  // relay_hops); on a device by an all-to-all of s rows for each pair, which needs room for 2 x size() x s rows. On
  // symmetric memory each member would read what it wants. `index` is the caller's in the group.
  virtual PendingPtr fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int index);
  // The way back: sum [h, ...] += for each slot whose owner is a row of this member, by ascending slot, that row of
  // the slot's member's `in` [s, ...].
  virtual PendingPtr return_rows(at::Tensor sum, at::Tensor in, at::Tensor owners, int index);
  // Issues the operations of a batch together: none waits for another one of the same batch.
  virtual PendingPtr batch_p2p(std::vector<P2pOp> ops) = 0;
  virtual void barrier() = 0;
  // Member 0 gets in `out` what all brought, size() x `in` in group order; elsewhere `out` is undefined. `index` and
  // `size` are the caller's in the group.
  virtual PendingPtr gather(at::Tensor out, at::Tensor in, int index, int size);
};

}  // namespace metroplex::comm
