// The schedules by name. "auto" takes the one that config/derived.h names.
#pragma once

#include <string>
#include <vector>

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

// Throws base::Error("plan") when the schedule cannot be built from these numbers or is not known (with the
// nearest name).
PipelineTable build_schedule(const std::string& name, const ScheduleRequest& request);

// Names in the order of the table, without "auto".
std::vector<std::string> schedule_names();

}  // namespace metroplex::plan
