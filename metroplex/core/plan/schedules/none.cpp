#include "plan/schedules/registry.h"

#include "base/error.h"
#include "plan/table_writer.h"

namespace metroplex::plan {

PipelineTable build_none(const ScheduleRequest& request) {
  MPX_CHECK(request.num_stages == 1, "plan",
            "schedule none runs on one pipeline rank, pipeline_model_parallel_size is ", request.num_stages,
            "; use 1f1b or interleaved");
  if (request.overlaps_experts && !request.forward_only) return build_overlapped(request, "none");
  PipelineTable table = make_table(request, "none");
  TableWriter writer(table, 0);
  for (int microbatch = 0; microbatch < request.num_microbatches; ++microbatch) {
    for (int chunk = 0; chunk < request.num_chunks; ++chunk) writer.forward({microbatch, chunk});
    if (request.forward_only) continue;
    for (int chunk = request.num_chunks - 1; chunk >= 0; --chunk) writer.backward({microbatch, chunk});
  }
  table.live_activation_bounds = {request.forward_only ? 0 : request.num_chunks};
  return table;
}

}  // namespace metroplex::plan
