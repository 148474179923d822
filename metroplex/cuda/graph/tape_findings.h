// What is wrong with a capture, as found from tapes without a GPU: each finding names the operation and the place
// that issued it. Here are the checks of one tape, of two recordings, of several tapes in the order of their replays,
// and of the ranks' communication; accesses outside of operations are found by guarded_arena.h.
#pragma once

#include <cstdint>
#include <map>
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

// For those who find.
Finding finding_at(const Tape& tape, size_t operation, FindingKind kind, std::string text);
// The runs of bytes that x covers, however it is strided; one from its first to its last where there are too many.
std::vector<TapeSpan> pieces_of(const at::Tensor& x);
// input_not_copied, or outside_pool where the tape writes it first.
FindingKind kind_of_external(const Tape& tape, const TapeExternal& external);

// Compares two recordings of the same work on different data. A graph repeats the first one, so whatever differs in
// the second is something that a replay would get wrong.

// Each was recorded into a pool that was in the same state, a fresh one say; addresses in a pool are compared from
// its start, all others as they are. In this order:
// - operators: the first that differs is named, with its neighbours; what follows is not compared.
// - shapes and types, and addresses in the pool: the first that differs, and how many do.
// - addresses outside: each memory once, as an input that was not copied in, or, where it is written first, as memory
//   from outside the pool.
// - numbers of the host by their names (TapeScalar), and of own kernels all that is among their arguments besides
//   pointers.
std::vector<Finding> compare(const Recording& first, const Recording& second);

// Checks that between the start of a communication call and its wait nothing writes what it reads or touches what it
// writes. On a fast machine such a race with a slow peer would not show.

// Also finds the calls that are not waited for within the tape: a replay would start them a second time.
std::vector<Finding> check_pending_calls(const Tape& tape);

// Compares communication on the tapes of all ranks: every member of a group must issue the same calls in the same
// order, and every send needs its receive. On GPUs a mismatch would be a silent hang.

struct TapeMessage {
  bool send = false;
  int64_t peer = 0, channel = 0;  // peer: index in the group
  std::string form;               // "float [2, 3]"
};
// Plain data, so that it can travel between processes.
struct TapeCall {
  std::string group, name, place;
  std::string form;                         // what all members have alike: shapes, types, numbers
  std::vector<TapeMessage> messages;        // of a batch_p2p
  std::vector<int64_t> rows_to, rows_from;  // of an all_to_all, by member
};
// Without "wait".
std::vector<TapeCall> calls_of(const Tape& tape);

struct RankCalls {
  std::vector<TapeCall> calls;
  std::map<std::string, TapeGroup> groups;  // by name, those that it calls
};
// By global rank. Collectives are compared among all who have a group of the same members and purpose, whatever its
// name, since they share a communicator; messages by pair, direction, channel and group. Each finding is the first
// difference of a group or a pair, and names both ranks.
std::vector<Finding> compare_calls(const std::vector<RankCalls>& ranks);

// Checks graphs that share memory and are replayed in another order than that of their capture: does every read still
// see the value that it saw in the capture?

// One graph, or eager work between them that was recorded as one.
struct Replayed {
  std::string name;  // in findings
  const Tape* tape = nullptr;
  std::vector<at::Tensor> inputs;  // that are copied in ahead of each replay; their memory need not be of a pool
};

// `captured`: all of them in the order of their captures, each of which was a run. `replays`: indices of it in the
// order of the replays that follow. A read of inputs, or of memory of `pools`, has to see what the same operation (or
// the same copying in) wrote there that had in the capture; memory of neither carries state from one replay to the
// next and may change. Names buffer, writers and reader.
std::vector<Finding> check_replays(const std::vector<Replayed>& captured, const std::vector<size_t>& replays,
                                   const std::vector<const TapePool*>& pools);

}  // namespace metroplex::cuda
