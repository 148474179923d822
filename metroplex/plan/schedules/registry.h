// The schedules and their builders; auto is what config/derived.h makes of it.
#pragma once

#include "config/parallel.h"
#include "plan/pipeline_table.h"

namespace metroplex::plan {

struct ScheduleRequest {
  int num_stages = 1;  // pp
  int num_chunks = 1;  // vpp
  int num_microbatches = 1;
  int microbatch_group_size = 0;  // interleaved: microbatches that a chunk takes in a row; 0: num_stages
  bool forward_only = false;
  bool overlap_p2p = false;  // interleaved: receives are posted one action ahead of their use
};

// What the configuration of a run asks for.
ScheduleRequest schedule_request(const config::Parallel& parallel, int num_chunks, int num_microbatches);

// Throws base::Error("plan") when the schedule cannot be built from these numbers.
PipelineTable build_schedule(config::Choice<config::Schedule> schedule, const ScheduleRequest& request);

// No pipelining: one rank, microbatch after microbatch, forward through all its chunks and backward through
// them at once.

// Needs num_stages == 1. Holds one forward a chunk.
PipelineTable build_none(const ScheduleRequest& request);

// GPipe (Huang et al., 2019): all forwards, then all backwards. The plainest picture of a bubble, (p-1)/(m+p-1) of
// the time, and the largest memory: every microbatch is alive at the turn.

// Needs num_chunks == 1. Holds num_microbatches forwards on every rank.
PipelineTable build_gpipe(const ScheduleRequest& request);

// 1F1B (PipeDream-flush): after a warm-up of as many forwards as there are stages behind, every rank alternates one
// forward and one backward. The bubble of GPipe with at most p - r microbatches alive on rank r.

// Needs num_chunks == 1. Holds min(num_microbatches, num_stages - rank) forwards.
PipelineTable build_one_f_one_b(const ScheduleRequest& request);

// Interleaved 1F1B (Narayanan et al., 2021, arXiv:2104.04473): every rank holds several chunks of the model, so the
// bubble shrinks by their number; paid with more p2p and a longer warm-up. A chunk takes a group of microbatches
// in a row; with groups larger than num_stages, rank 0 stores what the last rank sends until its turn comes.

// Any number of microbatches: where Megatron refuses a short group (interleaved_refusal), the group waits for as long
// as a full one would take. Holds the warm-up + 1 forwards (see count_warmup), all if the warm-up is everything.
// Throws base::Error for one stage, or a group size below num_stages.
PipelineTable build_interleaved(const ScheduleRequest& request);

}  // namespace metroplex::plan
