#include "plan/megatron_order.h"

#include <algorithm>

#include "base/error.h"
#include "plan/schedules/registry.h"

namespace metroplex::plan {

WarmupCounts count_warmup(const MicrobatchShape& shape, int rank) {
  WarmupCounts counts;
  counts.total = shape.num_microbatches * shape.num_chunks;
  const int ranks_after = shape.num_stages - rank - 1;
  if (shape.forward_only) {
    counts.warmup = counts.total;
  } else if (shape.num_stages == 1) {
    counts.warmup = 0;
  } else if (!shape.interleaved) {
    counts.warmup = ranks_after;
  } else {
    counts.warmup = ranks_after * 2 + (shape.num_chunks - 1) * shape.group() + (shape.overlap_moe ? 1 : 0);
  }
  counts.all_warmup = counts.warmup >= counts.total;
  counts.warmup = std::min(counts.warmup, counts.total);
  counts.remaining = counts.total - counts.warmup;
  return counts;
}

std::vector<Slot> schedule_table(int num_microbatches, int num_chunks, int group_size) {
  MPX_ASSERT(group_size > 0, "group size ", group_size);
  std::vector<Slot> table;
  for (int first = 0; first < num_microbatches; first += group_size) {
    const int end = std::min(first + group_size, num_microbatches);
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      for (int microbatch = first; microbatch < end; ++microbatch) table.push_back({microbatch, chunk});
    }
  }
  return table;
}

std::string interleaved_refusal(const MicrobatchShape& shape) {
  const int group = shape.group(), count = shape.num_microbatches, stages = shape.num_stages;
  if (group < stages || group > count) {
    return base::concat("microbatch_group_size_per_vp_stage ", group, " is not between pipeline_model_parallel_size ",
                        stages, " and the number of microbatches ", count,
                        "; the interleaved schedule needs at least as many microbatches as stages");
  }
  const int last = count % group;
  if (last > 0 && last < stages) {
    return base::concat(count, " microbatches in groups of ", group, " leave a last group of ", last,
                        ", less than pipeline_model_parallel_size ", stages,
                        "; choose a group size that divides the number of microbatches");
  }
  return "";
}

MicrobatchShape interleaved_shape(const ScheduleRequest& request) {
  MicrobatchShape shape;
  shape.num_stages = request.num_stages;
  shape.num_chunks = request.num_chunks;
  shape.interleaved = true;
  shape.num_microbatches = request.num_microbatches;
  shape.group_size = request.microbatch_group_size;
  shape.forward_only = request.forward_only;
  shape.group_size = std::min(shape.group(), std::max(shape.num_stages, shape.num_microbatches));
  const int last = shape.num_microbatches % shape.group_size;
  if (last > 0 && last < shape.num_stages) shape.num_microbatches += shape.num_stages - last;
  return shape;
}

}  // namespace metroplex::plan
