// Megatron's order of work on a pipeline rank: the number of warm-up forwards, and the table of (microbatch, chunk).
// Tests compare the builders in schedules/ with it. Sources: get_pp_rank_microbatches, get_schedule_table.
#pragma once

#include <string>
#include <vector>

#include "plan/table_writer.h"

namespace metroplex::plan {

struct MicrobatchShape {
  int num_stages = 1;
  int num_chunks = 1;
  bool interleaved = false;  // the virtual-stage schedule, also with one chunk per rank
  int num_microbatches = 1;
  int group_size = 0;  // 0: num_stages
  bool forward_only = false;
  bool overlap_moe = false;  // one more warm-up forward, because each backward overlaps with a forward
  int group() const { return group_size > 0 ? group_size : num_stages; }
};

struct WarmupCounts {
  int total = 0;  // forwards per step and rank: microbatches * chunks
  bool all_warmup = false;
  int warmup = 0;
  int remaining = 0;  // forwards that alternate with backwards
};
WarmupCounts count_warmup(const MicrobatchShape& shape, int rank);

// Returns the forwards of one rank in order: groups of `group_size` microbatches, and within a group chunk after
// chunk. Backwards use the same table with chunks counted from the end.
std::vector<Slot> schedule_table(int num_microbatches, int num_chunks, int group_size);

struct ScheduleRequest;
// Returns the shape of an interleaved order. The rank order needs groups of at least num_stages microbatches, so a
// smaller last group is completed with nonexistent microbatches, which leave gaps in the schedule.
MicrobatchShape interleaved_shape(const ScheduleRequest& request);

// Megatron's rule for the interleaved schedule: a group has between num_stages and num_microbatches microbatches, and
// a shorter last group at least num_stages. Returns the violation, or "". build_interleaved() has no such limit.
std::string interleaved_refusal(const MicrobatchShape& shape);

}  // namespace metroplex::plan
