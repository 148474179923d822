// The messages by which rows reach the slots that want them (GroupBackend::fetch_rows) where the host can read the
// owners: who has a row passes it on, so a row that c slots want is with all of them in ceil(log2(c + 1)) rounds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/backends/backend.h"

namespace metroplex::comm {

// Row `row` of a member's own, or what came to its slot `from_slot` in an earlier round, to slot `to_slot`.
struct Hop {
  int from = 0, to = 0;  // members
  int64_t row = 0, from_slot = -1, to_slot = 0;
  friend bool operator==(const Hop&, const Hop&) = default;
};

// Round by round; in each, one holder of a row sends it once. owners [members * slots]; a member has `home` rows.
std::vector<std::vector<Hop>> relay_hops(std::span<const int32_t> owners, int64_t slots, int64_t home);

// Of owners on the host.
std::span<const int32_t> owner_numbers(const at::Tensor& owners);

// What GroupBackend::fetch_rows and return_rows are unless a backend can do better, for tensors on the host and for
// those whose owners the host cannot read.
PendingPtr fetch_by_hops(GroupBackend& backend, at::Tensor out, at::Tensor in, const at::Tensor& owners, int index);
PendingPtr fetch_by_blocks(GroupBackend& backend, at::Tensor out, const at::Tensor& in, const at::Tensor& owners,
                           int index);
PendingPtr return_by_messages(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners,
                              int index);
PendingPtr return_by_blocks(GroupBackend& backend, at::Tensor sum, const at::Tensor& in, const at::Tensor& owners,
                            int index);

}  // namespace metroplex::comm
