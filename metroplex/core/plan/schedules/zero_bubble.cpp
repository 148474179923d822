#include "plan/schedules/registry.h"

#include <algorithm>

#include "base/error.h"
#include "plan/greedy.h"
#include "plan/table_writer.h"
#include "plan/transfers.h"
#include "plan/verify.h"

namespace metroplex::plan {
namespace {

// Writes the compute actions of one rank: `warmup` forwards, then one forward and one backward in turn. The weight
// action of a microbatch follows `lag` backwards later, and at once when no forwards are left.
void write_order(std::vector<Action>& actions, int num_microbatches, int warmup, int lag) {
  const auto add = [&](ActionKind kind, int microbatch) { actions.push_back({kind, microbatch, 0, -1, -1}); };
  int forwards = 0, weights = 0;
  for (; forwards < std::min(warmup, num_microbatches); ++forwards) add(ActionKind::forward, forwards);
  for (int backwards = 0; backwards < num_microbatches; ++backwards) {
    if (forwards < num_microbatches) add(ActionKind::forward, forwards++);
    add(ActionKind::backward, backwards);
    if (backwards >= lag) add(ActionKind::weight, weights++);
  }
  while (weights < num_microbatches) add(ActionKind::weight, weights++);
}

PipelineTable build(const ScheduleRequest& request, const char* name, int depth) {
  MPX_CHECK(request.num_chunks == 1, "plan", "schedule ", name,
            " holds one chunk a rank, parallel.virtual_pipeline_model_parallel_size is ", request.num_chunks,
            "; use zb_v");
  PipelineTable table = make_table(request, name);
  if (request.forward_only) return add_transfers(forward_order(table), {});
  for (int rank = 0; rank < request.num_stages; ++rank) {
    const int after = request.num_stages - 1 - rank;
    write_order(table.ranks[static_cast<size_t>(rank)], request.num_microbatches, depth * after, depth * rank);
  }
  return add_transfers(table, {});
}

}  // namespace

PipelineTable build_zb_h1(const ScheduleRequest& request) { return build(request, "zb_h1", 1); }
PipelineTable build_zb_h2(const ScheduleRequest& request) { return build(request, "zb_h2", 2); }

}  // namespace metroplex::plan
