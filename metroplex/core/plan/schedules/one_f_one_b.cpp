#include "plan/schedules/registry.h"

#include <algorithm>

#include "base/error.h"
#include "plan/megatron_order.h"

namespace metroplex::plan {
namespace {

void write_rank(TableWriter& writer, const WarmupCounts& counts) {
  const auto slot = [](int microbatch) { return Slot{microbatch, 0}; };
  for (int k = 0; k < counts.warmup; ++k) {
    writer.recv_forward(slot(k));
    writer.forward(slot(k));
    writer.send_forward(slot(k));
    writer.close_batch();
  }
  if (counts.remaining > 0) writer.recv_forward(slot(counts.warmup));
  for (int k = 0; k < counts.remaining; ++k) {
    const int ahead = counts.warmup + k;
    writer.forward(slot(ahead));
    writer.send_forward(slot(ahead));
    writer.recv_backward(slot(k));
    writer.close_batch();
    writer.backward(slot(k));
    writer.send_backward(slot(k));
    if (k + 1 < counts.remaining) writer.recv_forward(slot(ahead + 1));
    writer.close_batch();
  }
  for (int k = counts.remaining; k < counts.total; ++k) {
    writer.recv_backward(slot(k));
    writer.backward(slot(k));
    writer.send_backward(slot(k));
    writer.close_batch();
  }
}

void write_forward_only(TableWriter& writer, int num_microbatches) {
  for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    writer.recv_forward({microbatch, 0});
    writer.forward({microbatch, 0});
    writer.send_forward({microbatch, 0});
    writer.close_batch();
  }
}

}  // namespace

PipelineTable build_one_f_one_b(const ScheduleRequest& request) {
  MPX_CHECK(request.num_chunks == 1, "plan",
            "schedule 1f1b holds one chunk a rank, virtual_pipeline_model_parallel_size is ", request.num_chunks,
            "; use interleaved");
  if (request.overlaps_experts && !request.forward_only) return build_overlapped(request, "1f1b");
  PipelineTable table = make_table(request, "1f1b");
  MicrobatchShape shape;
  shape.num_stages = request.num_stages;
  shape.num_microbatches = request.num_microbatches;
  for (int rank = 0; rank < request.num_stages; ++rank) {
    TableWriter writer(table, rank);
    if (request.forward_only) {
      write_forward_only(writer, request.num_microbatches);
      table.live_activation_bounds.push_back(0);
    } else {
      write_rank(writer, count_warmup(shape, rank));
      table.live_activation_bounds.push_back(std::min(request.num_microbatches, request.num_stages - rank));
    }
  }
  return table;
}

}  // namespace metroplex::plan
