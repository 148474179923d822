// exchange_rows on symmetric memory, where a member reads the rows of others in place. An all-gather of counts and
// capacities gives every member the transfer plan on the device, and only the planned rows move. The exchange is
// libtorch's c10d::nvshmem_extension::all_to_all_vdev_2d_offset (nvshmem.cpp), or a fake in tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "comm/backends/backend.h"
#include "device/side_stream.h"

namespace metroplex::comm {

// The transfers of one exchange among n members.
struct RowsPlan {
  at::Tensor splits, offsets;  // [n] int64: rows to each member, and their first row in this member's `in`
  at::Tensor received;         // [n] int64: rows from each member
  at::Tensor overflow;         // [] bool, see GroupBackend::exchange_rows
};

// `told` [n, 2 n + 1] int64 has one row per member: available rows for each member, requested rows for each member,
// and its receive capacity.
RowsPlan plan_rows(const at::Tensor& told, int index, int64_t capacity);

class SymmetricRows {
 public:
  // All functions are collective over the group.
  struct Calls {
    // [k] from every member -> [n k], enqueued on the current stream.
    std::function<at::Tensor(const at::Tensor&)> all_gather;
    std::function<int64_t(int64_t)> host_max;
    // Allocates symmetric memory of this shape, which is equal on all members. May block until all members call it.
    std::function<at::Tensor(at::IntArrayRef shape, at::ScalarType dtype)> allocate;
    // Runs on the current stream. Row 0 of `in_splits` [2, n] int64 holds the number of rows of `in` that each member
    // reads here, row 1 their offsets. Received rows are packed in `out`; `out_splits` [2, n] is filled in the same
    // format. All four tensors are symmetric memory. A member starts reading when all have reached this call; no
    // member waits for the end of the reads.
    std::function<void(at::Tensor& in, at::Tensor& out, at::Tensor& in_splits, at::Tensor& out_splits)> exchange;
  };
  // `index` is the caller's index in a group of `members`. Each buffer has at least `least_rows` rows.
  SymmetricRows(Calls calls, int index, int members, at::Device device, int64_t least_rows = 0)
      : calls_(std::move(calls)), index_(index), members_(members), stream_(device), least_rows_(least_rows) {}

  // Implements GroupBackend::exchange_rows. The first exchange of a capacity, shape and dtype allocates memory for
  // the longest `in` or `out` of any member and blocks the host. Later exchanges must not exceed that length and do
  // not block the host.
  PendingPtr exchange(CountedRows out, const CountedRows& in, int64_t capacity, at::Tensor overflow);

 private:
  // One set of buffers is enough: a member writes them for the next exchange only after its all-gather. Every member
  // joins that all-gather after it has read its rows.
  struct Buffers {
    int64_t rows = 0;
    at::Tensor in, in_splits, out_splits, out;
  };
  using Kind = std::tuple<int64_t, std::vector<int64_t>, at::ScalarType>;  // capacity, shape of a row, dtype
  Buffers& buffers_of(const Kind& kind, int64_t rows);

  Calls calls_;
  int index_, members_;
  device::SideStream stream_;
  int64_t least_rows_;
  std::map<Kind, Buffers> buffers_;
};

}  // namespace metroplex::comm
