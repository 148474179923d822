// The schedules and their builders. config/derived.h resolves `auto`.
#pragma once

#include "config/parallel.h"
#include "plan/pipeline_table.h"
#include "plan/transfers.h"

namespace metroplex::plan {

struct ScheduleRequest {
  int num_stages = 1;  // pp
  int num_chunks = 1;  // vpp
  int num_microbatches = 1;
  int microbatch_group_size = 0;  // interleaved: consecutive microbatches per chunk; 0: num_stages
  bool forward_only = false;
  bool overlap_p2p = false;  // interleaved: receives are posted one action before their use
  // none, 1f1b, interleaved, dualpipe_v: forwards advance in turns with backwards of other microbatches.
  bool overlaps_experts = false;
  bool delays_weights = false;  // none, 1f1b, interleaved with overlaps_experts: weight actions after each backward
  ActionTimes times = {};       // searched: as in SearchRequest
  int live_microbatches = 0;    // searched: maximum per rank; 0: num_stages

  bool operator==(const ScheduleRequest&) const = default;
};

ScheduleRequest schedule_request(const config::Parallel& parallel, int num_chunks, int num_microbatches);

// Keeps the last tables, because every rank that is a thread or whose memory is predicted needs the same ones. Throws
// base::Error("plan") if the schedule cannot be built from these numbers.
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

// The order of none, 1f1b and interleaved with overlaps_experts: Megatron-LM's combined 1F1B. One forward more than
// in the interleaved order precedes the first pair; with one chunk per rank, warm-up grows by 2 per rank.
PipelineTable build_overlapped(const ScheduleRequest& request, const char* name);

// Zero-bubble schedules (Qi et al., 2024, arXiv:2401.10241): weight gradients are separate actions that fill the gaps
// of 1F1B. With equal times of forward, backward and weight actions, H1 has a third of 1F1B's bubble and its memory.
// H2 has no gap between the first and the last action of a rank, with at most 2 p - 1 live microbatches. A step that
// ends with a collective over the ranks gains nothing from H2, because its ranks end at different times.

// Requires num_chunks == 1. Both hold min(num_microbatches, p) or min(num_microbatches, 2 p - 1) microbatches.
PipelineTable build_zb_h1(const ScheduleRequest& request);
PipelineTable build_zb_h2(const ScheduleRequest& request);

// ZB-V (arXiv:2405.15362): two chunks per rank in a V, so that the first rank also computes the loss. The bubble is
// that of the first half forward pass, with 1F1B's memory. Requires num_chunks == 2.
PipelineTable build_zb_v(const ScheduleRequest& request);

// DualPipe-V (DeepSeek, 2025): the V placement, in an order that pairs the forward of one microbatch with the
// backward of another. Requires num_chunks == 2. Steps with fewer than 2 p microbatches have gaps for the missing
// ones.
PipelineTable build_dualpipe_v(const ScheduleRequest& request);

// The schedule with weight actions that search_schedule() finds for the times and the memory limit of the request.
// Requires one chunk, or two in a V.
PipelineTable build_searched(const ScheduleRequest& request);

}  // namespace metroplex::plan
