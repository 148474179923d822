// A backend that stamps every operation with the virtual clock of the calling rank and hands it on to a real one.
//
// What an operation costs is LinkCost::seconds of the most bytes that a member sends or receives, n members:
//   all_gather, reduce_scatter   (n - 1) / n of the whole tensor; all_reduce twice that
//   broadcast                    the tensor
//   all_to_all, exchange_rows    the larger of the rows for others and the rows from others; of exchange_rows, those
//                                that are sent: up to `capacity` for each, whether or not there is room for them
//   fetch_rows, return_rows      each row that travels by itself, with the latency; nobody waits for rows of others.
//                                Rows are relayed as by relay_hops (owned_rows.h), passed on when they have come,
//                                whether or not their member waits by then; what adds up on their return takes no
//                                time
//   send, recv                   the tensor. The receives of a batch share the receiver's link and end together
//   gather                       as the receives of member 0
//   barrier                      the latency alone
#pragma once

#include <memory>

#include "comm/backends/backend.h"
#include "comm/backends/virtual_clock.h"

namespace metroplex::comm {

struct ClockedSeat {
  GroupSpec group;
  int rank = 0;             // the calling one, global
  bool sends_wait = false;  // a send ends with its receive, as HubOptions::rendezvous says; false: at once
};

// Requires tensors on the CPU. `inner` completes a wait only when all that take part have issued the operation.
std::shared_ptr<GroupBackend> make_clocked_backend(const ClockedSeat& seat, std::shared_ptr<VirtualClock> clock,
                                                   std::shared_ptr<GroupBackend> inner);

}  // namespace metroplex::comm
