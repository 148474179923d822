// Simulates a table's p2p calls as rendezvous. A call is one p2p action or a batch of neighbouring ones; a rank
// blocks in it until every transfer of the call has met its counterpart, in a call of the peer at the same time.
// Shared by verify.h (no deadlock?) and timeline.h (at what time?).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/pipeline_table.h"

namespace metroplex::plan {

// The same number on both sides of a transfer, different for all transfers of a table.
int64_t transfer_id(const PipelineTable& table, int rank, const Action& action);

// One past the last action of the call that starts at `begin` (a p2p action).
size_t call_end(const std::vector<Action>& actions, size_t begin);

// For each rank the index of the action it is stuck at, or the size of its list: all at the end means no deadlock.
// Expects peers, microbatches and chunks in range.
std::vector<size_t> run_rendezvous(const PipelineTable& table);

}  // namespace metroplex::plan
