#include "plan/schedules/registry.h"

#include "base/error.h"
#include "plan/table_writer.h"

namespace metroplex::plan {

PipelineTable build_gpipe(const ScheduleRequest& request) {
  MPX_CHECK(request.num_chunks == 1, "plan",
            "schedule gpipe holds one chunk a rank, virtual_pipeline_model_parallel_size is ", request.num_chunks,
            "; use interleaved");
  PipelineTable table = make_table(request, "gpipe");
  for (int rank = 0; rank < request.num_stages; ++rank) {
    TableWriter writer(table, rank);
    for (int microbatch = 0; microbatch < request.num_microbatches; ++microbatch) {
      writer.recv_forward({microbatch, 0});
      writer.forward({microbatch, 0});
      writer.send_forward({microbatch, 0});
      writer.close_batch();
    }
    for (int microbatch = 0; !request.forward_only && microbatch < request.num_microbatches; ++microbatch) {
      writer.recv_backward({microbatch, 0});
      writer.backward({microbatch, 0});
      writer.send_backward({microbatch, 0});
      writer.close_batch();
    }
    table.live_activation_bounds.push_back(request.forward_only ? 0 : request.num_microbatches);
  }
  return table;
}

}  // namespace metroplex::plan
