// What tapes show to be wrong with a capture, on a laptop: each finding names the operation and the place that issued
// it. What two recordings say: tape_compare.h; several tapes in the order of their replays: tape_buffers.h; the ranks
// among themselves: tape_calls.h; accesses beside all operations: guarded_arena.h.
#pragma once

#include <string>
#include <vector>

#include "cuda/graph/tape.h"
#include "cuda/graph/tape_pool.h"

namespace metroplex::cuda {

enum class FindingKind {
  other_address,
  other_shape,
  other_sequence,
  stale_number,
  input_not_copied,
  host_access,
  undeclared,
  outside_pool,
  overwritten,
  in_flight,
  never_waited,
  other_order,
};
// "another address"
const char* words_of(FindingKind kind);

struct Finding {
  FindingKind kind;
  std::string operation, place;  // TapeOperation::name and ::place; place may be empty
  std::string text;              // what was seen
};
// "a number of the host that changes: aten::mul.Tensor of layer 3: other = 0.1, and 0.2 in the other recording"
std::string text_of(const Finding& finding);
// One line each, without those that say the same.
std::string report(const std::vector<Finding>& findings);

// What was recorded, not strictly (TapeRecorder::begin), and where its memory came from.
struct Recording {
  const Tape& tape;
  const TapePool& pool;
};

// All that one tape shows: values that the host reads, memory from outside that has been given back, buffers touched
// between a communication call and its wait, calls that are not waited for; and, where it is replayed `alone`, not
// among other graphs of its pool, values there that its next replay does not find.
std::vector<Finding> check_tape(const Recording& recording, bool alone = true);
// The same of both, and what differs between them (tape_compare.h).
std::vector<Finding> check_tapes(const Recording& first, const Recording& second);

// For those who find.
Finding finding_at(const Tape& tape, size_t operation, FindingKind kind, std::string text);
// The runs of bytes that x covers, however it is strided; one from its first to its last where there are too many.
std::vector<TapeSpan> pieces_of(const at::Tensor& x);
// input_not_copied, or outside_pool where the tape writes it first.
FindingKind kind_of_external(const Tape& tape, const TapeExternal& external);

}  // namespace metroplex::cuda
