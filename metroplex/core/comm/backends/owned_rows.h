// Message schedules for GroupBackend::fetch_rows and return_rows. If the host can read the owners, holders relay a
// row. A row requested by c slots then reaches all of them in ceil(log2(c + 1)) rounds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/backends/backend.h"

namespace metroplex::comm {

// Sends row `row` of member `from` to slot `to_slot` of member `to`. If from_slot >= 0, the row is the one received
// in that slot in an earlier round.
struct Hop {
  int from = 0, to = 0;  // members
  int64_t row = 0, from_slot = -1, to_slot = 0;
  friend bool operator==(const Hop&, const Hop&) = default;
};

// Returns the hops of each round. Every holder of a row sends it once per round. owners [members * slots]; each
// member owns `owned_rows` rows.
std::vector<std::vector<Hop>> relay_hops(std::span<const int32_t> owners, int64_t slots, int64_t owned_rows);

// Requires `owners` in host memory.
std::span<const int32_t> owner_numbers(const at::Tensor& owners);

// Default implementations of GroupBackend::fetch_rows and return_rows: messages for host tensors, blocks for tensors
// whose owners the host cannot read.
PendingPtr fetch_by_hops(GroupBackend& backend, at::Tensor out, at::Tensor in, const at::Tensor& owners, int index);
PendingPtr fetch_by_blocks(GroupBackend& backend, at::Tensor out, const at::Tensor& in, const at::Tensor& owners,
                           int index);
PendingPtr return_by_messages(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners,
                              int index);
PendingPtr return_by_blocks(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners,
                            int index);

}  // namespace metroplex::comm
