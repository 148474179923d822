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

}  // namespace metroplex::plan
