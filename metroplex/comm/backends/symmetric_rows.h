// exchange_rows on symmetric memory, where a member reads the rows of others in place: an all-gather of counts and of
// room tells every member, on the device, how many rows go from whom to whom, and only those move. For
// c10d::nvshmem_extension::all_to_all_vdev_2d_offset of libtorch (nvshmem.cpp), and for what stands in for it in
// tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "comm/backends/backend.h"
#include "cuda/side_stream.h"

namespace metroplex::comm {

// What moves when each member has told its counts and its room. n members.
struct RowsPlan {
  at::Tensor splits, offsets;  // [n] int64: rows that go to each member, and where they begin in the own rows
  at::Tensor received;         // [n] int64: rows that come from each
  at::Tensor overflow;         // [] bool, as GroupBackend::exchange_rows says
};

// told [n, 2 n + 1] int64, a row for each member: how many rows it has for each, how many it asked to send to each,
// its room.
RowsPlan plan_rows(const at::Tensor& told, int index, int64_t capacity);

class SymmetricRows {
 public:
  // All are collective over the group.
  struct Calls {
    // [k] of every member -> [n k], enqueued on the current stream.
    std::function<at::Tensor(const at::Tensor&)> all_gather;
    // The largest of a number of the host.
    std::function<int64_t(int64_t)> host_max;
    // Symmetric memory of this shape, the same on all members. May wait for them.
    std::function<at::Tensor(at::IntArrayRef shape, at::ScalarType dtype)> allocate;
    // Enqueues on the current stream: row 0 of `in_splits` [2, n] int64 is how many rows of `in` each member reads
    // here, row 1 from where on; what is read lies in `out` one after the other, as `out_splits` [2, n] says in the
    // same way. All four are symmetric memory. A member begins to read when all have come here, and nobody waits for
    // its end.
    std::function<void(at::Tensor& in, at::Tensor& out, at::Tensor& in_splits, at::Tensor& out_splits)> exchange;
  };
  // `index`: of the caller in a group of n members. Memory of a shape has at least `least_rows` rows.
  SymmetricRows(Calls calls, int index, int members, at::Device device, int64_t least_rows = 0)
      : calls_(std::move(calls)), index_(index), members_(members), stream_(device), least_rows_(least_rows) {}

  // GroupBackend::exchange_rows. The first exchange of a capacity, shape and dtype takes memory for its longest `in`
  // or `out` on any member, which later ones must not exceed, and the host waits for it; later ones are enqueued
  // only.
  PendingPtr exchange(CountedRows out, const CountedRows& in, int64_t capacity, at::Tensor overflow);

 private:
  // One of each is enough: who writes for the next exchange has its all-gather behind it, to which every member comes
  // when it has read.
  struct Buffers {
    int64_t rows = 0;
    at::Tensor in, in_splits, out_splits, out;
  };
  using Kind = std::tuple<int64_t, std::vector<int64_t>, at::ScalarType>;  // capacity, shape of a row, dtype
  Buffers& buffers_of(const Kind& kind, int64_t rows);

  Calls calls_;
  int index_, members_;
  cuda::SideStream stream_;
  int64_t least_rows_;
  std::map<Kind, Buffers> buffers_;
};

}  // namespace metroplex::comm
