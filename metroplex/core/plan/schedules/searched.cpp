#include "plan/schedules/registry.h"

#include "base/error.h"
#include "plan/greedy.h"
#include "plan/schedule_search.h"
#include "plan/table_writer.h"

namespace metroplex::plan {

PipelineTable build_searched(const ScheduleRequest& request) {
  MPX_CHECK(request.num_chunks <= 2, "plan",
            "schedule searched holds one or two chunks a rank, parallel.virtual_pipeline_model_parallel_size is ",
            request.num_chunks, "; set it to 1 or 2");
  if (request.forward_only) {
    PipelineTable shape = make_table(request, "searched");
    shape.v_shaped = request.num_chunks == 2;
    return add_transfers(forward_order(shape), {});
  }
  SearchRequest search;
  search.num_stages = request.num_stages;
  search.num_chunks = request.num_chunks;
  search.num_microbatches = request.num_microbatches;
  search.splits_backward = true;
  search.times = request.times;
  search.live_limits.assign(static_cast<size_t>(request.num_stages),
                            request.live_microbatches > 0 ? request.live_microbatches : request.num_stages);
  PipelineTable table = search_schedule(search).table;
  table.name = "searched";
  return table;
}

}  // namespace metroplex::plan
