// Checks captures recorded on tapes, without a GPU. Each diagnostic (`Finding`) names the operation and the location
// that issued it. There are checks of one tape, of two recordings, of several tapes in replay order, and of the
// ranks' communication. guarded_arena.h finds accesses outside operations.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/tape.h"
#include "graph/tape_pool.h"

namespace metroplex::tape_check {

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
const char* kind_name(FindingKind kind);

struct Finding {
  FindingKind kind;
  std::string operation, place;  // TapeOperation::name and ::place; `place` may be empty
  std::string text;              // details
};
// "host number changed: aten::mul.Tensor in layer 3: other = 0.1 in the first recording and 0.2 in the second"
std::string text_of(const Finding& finding);
// One line per diagnostic, without duplicates.
std::string report(const std::vector<Finding>& findings);

// A non-strict recording (TapeRecorder::begin) and the pool of its memory.
struct Recording {
  const graph::Tape& tape;
  const graph::TapePool& pool;
};

// Checks one tape. Reports values that the host reads, freed memory outside the pool, buffers accessed between a
// communication call and its wait, and calls without a wait. `alone`: no other graph of its pool is replayed. If so,
// also reports reads of pool memory whose value the next replay does not find.
std::vector<Finding> check_tape(const Recording& recording, bool alone = true);

Finding finding_at(const graph::Tape& tape, size_t operation, FindingKind kind, std::string text);
// Ranges of bytes that x covers, for any strides; the range from first to last element if there are too many.
std::vector<graph::TapeSpan> pieces_of(const at::Tensor& x);
// Returns input_not_copied, or outside_pool if the tape writes the memory first.
FindingKind kind_of_external(const graph::Tape& tape, const graph::TapeExternal& external);

// Compares two recordings of the same work on different data. A graph replays the first recording, so it would
// compute every differing operation wrongly.

// Both must be recorded into pools in the same state, for example new pools. Addresses in a pool are compared
// relative to its start, other addresses as they are. The checks, in this order:
// - operators: reports the first difference with its neighbors; later operations are not compared.
// - shapes and types, and addresses in the pool: reports the first difference and the number of differences.
// - addresses outside the pool: reports each memory block once, as an input that was not copied in or, if it is
// written first, as memory from outside the pool.
// - host numbers by name (TapeScalar), and all other arguments of our own kernels except pointers.
std::vector<Finding> compare(const Recording& first, const Recording& second);

// Checks that between the start of a communication call and its wait no operation writes its inputs or accesses its
// outputs. On a fast machine such a race with a slow peer would not show.

// Also reports calls without a wait in the tape: a replay would start them a second time.
std::vector<Finding> check_pending_calls(const graph::Tape& tape);

// Compares communication on the tapes of all ranks. Every member of a group must issue the same calls in the same
// order, and every send needs its receive. On GPUs a mismatch would be a silent hang.

struct TapeMessage {
  bool send = false;
  int64_t peer = 0, channel = 0;  // peer: index in the group
  std::string form;               // "float [2, 3]"
};
// Plain data, so that it can be sent between processes.
struct TapeCall {
  std::string group, name, place;
  std::string form;                         // properties that all members must have in common: shapes, types, numbers
  std::vector<TapeMessage> messages;        // of a batch_p2p
  std::vector<int64_t> rows_to, rows_from;  // of an all_to_all, by member
};
// Returns the tape's communication calls except "wait".
std::vector<TapeCall> list_calls(const graph::Tape& tape);

struct RankCalls {
  std::vector<TapeCall> calls;
  std::map<std::string, graph::TapeGroup> groups;  // called groups, by name
};
// `ranks` is indexed by global rank. Collectives are compared among all ranks whose group has the same members and
// purpose, under any name, because they share a communicator. Messages are compared by pair, direction, channel
// and group. Each diagnostic is the first difference of a group or a pair, and names both ranks.
std::vector<Finding> compare_calls(const std::vector<RankCalls>& ranks);

// For graphs that share memory and are replayed in a different order than they were captured, checks that every read
// sees the same value as during capture.

// A graph, or eager work between graphs that was recorded as one.
struct Replayed {
  std::string name;  // shown in diagnostics
  const graph::Tape* tape = nullptr;
  std::vector<at::Tensor> inputs;  // copied in before each replay; may be outside the pools
};

// `captured`: all graphs, in capture order. Each must also have run during capture. `replays`: indices into it, in
// replay order. A read of inputs, or of memory of `pools`, must see the write of the same operation (or input copy)
// as in the capture. Any other memory carries state between replays, so its contents may change. The diagnostic names
// buffer, writers and reader.
std::vector<Finding> check_replays(const std::vector<Replayed>& captured, const std::vector<size_t>& replays,
                                   const std::vector<const graph::TapePool*>& pools);

}  // namespace metroplex::tape_check
