// Communication on the tapes of all ranks: every member of a group has to issue the same calls in the same order, and
// every message needs its other end. On a device a difference is a hang, without a word.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/graph/tape_findings.h"

namespace metroplex::cuda {

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
  std::map<std::string, std::vector<int>> groups;  // global ranks of each group that it calls, in group order
};
// By global rank. Collectives are compared among all who have a group of the same members, whatever its name, since
// they share a communicator; messages by pair, direction, channel and group. Each finding is the first difference of
// a group or a pair, and names both ranks.
std::vector<Finding> compare_calls(const std::vector<RankCalls>& ranks);

}  // namespace metroplex::cuda
