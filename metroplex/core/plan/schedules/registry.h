// The schedules and their builders. config/derived.h resolves `auto`.
#pragma once

#include "config/parallel.h"
#include "plan/pipeline_table.h"

namespace metroplex::plan {

struct ScheduleRequest {
  int num_stages = 1;  // pp
  int num_chunks = 1;  // vpp
  int num_microbatches = 1;
  int microbatch_group_size = 0;  // interleaved: consecutive microbatches per chunk; 0: num_stages
  bool forward_only = false;
  bool overlap_p2p = false;  // interleaved: receives are posted one action before their use
};

ScheduleRequest schedule_request(const config::Parallel& parallel, int num_chunks, int num_microbatches);

// Throws base::Error("plan") if the schedule cannot be built from these numbers.
PipelineTable build_schedule(config::Choice<config::Schedule> schedule, const ScheduleRequest& request);

// No pipelining: one rank runs each microbatch forward through all its chunks and then backward.

// Requires num_stages == 1. Holds one forward per chunk.
PipelineTable build_none(const ScheduleRequest& request);

// GPipe (Huang et al., 2019): all forwards, then all backwards. The bubble is (p-1)/(m+p-1) of the time. Memory is
// largest, because every microbatch is live at the turn.

// Requires num_chunks == 1. Holds num_microbatches forwards on every rank.
PipelineTable build_gpipe(const ScheduleRequest& request);

// 1F1B (PipeDream-flush): warm-up runs one forward per following stage, then every rank alternates one forward and
// one backward. It has GPipe's bubble with at most p - r live microbatches on rank r.

// Requires num_chunks == 1. Holds min(num_microbatches, num_stages - rank) forwards.
PipelineTable build_one_f_one_b(const ScheduleRequest& request);

// Interleaved 1F1B (Narayanan et al., 2021, arXiv:2104.04473): every rank holds several chunks of the model. The
// bubble shrinks by their number, at the cost of more p2p and a longer warm-up. A chunk runs a group of microbatches
// consecutively. With groups larger than num_stages, rank 0 stores tensors from the last rank until they are needed.
//
// Accepts any number of microbatches: if Megatron rejects a short group (interleaved_refusal), the group takes as
// long as a full one. Holds warm-up + 1 forwards (see count_warmup), or all if everything is warm-up. Throws
// base::Error for one stage or a group size below num_stages.
PipelineTable build_interleaved(const ScheduleRequest& request);

}  // namespace metroplex::plan
