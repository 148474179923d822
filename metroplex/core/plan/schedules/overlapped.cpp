#include "plan/schedules/registry.h"

#include <algorithm>

#include "plan/megatron_order.h"
#include "plan/transfers.h"

namespace metroplex::plan {
namespace {

class OverlappedRank {
 public:
  OverlappedRank(const ScheduleRequest& request, std::vector<Action>& actions)
      : request_(request), actions_(actions) {}

  void write(const std::vector<Slot>& slots, const WarmupCounts& counts) {
    const auto at = [&](int k) { return slots[static_cast<size_t>(k)]; };
    for (int k = 0; k < counts.warmup; ++k) add(ActionKind::forward, at(k));
    for (int k = 0; k < counts.total; ++k) {
      const bool paired = k < counts.remaining && add(ActionKind::forward, at(counts.warmup + k));
      const Slot back{at(k).microbatch, request_.num_chunks - 1 - at(k).chunk};
      const bool runs = add(ActionKind::backward, back);
      if (paired && runs) actions_[actions_.size() - 2].in_turns = true;
      if (runs && request_.delays_weights) add(ActionKind::weight, back);
    }
  }

 private:
  // Returns false for a microbatch that only completes a group.
  bool add(ActionKind kind, Slot slot) {
    if (slot.microbatch >= request_.num_microbatches) return false;
    actions_.push_back({kind, slot.microbatch, slot.chunk, -1, -1});
    return true;
  }

  const ScheduleRequest& request_;
  std::vector<Action>& actions_;
};

WarmupCounts overlapped_warmup(const MicrobatchShape& shape, int rank) {
  WarmupCounts counts = count_warmup(shape, rank);
  // Megatron-LM has no table for one stage.
  if (shape.num_stages == 1) counts.warmup = std::min(counts.total, (shape.num_chunks - 1) * shape.group() + 1);
  counts.remaining = counts.total - counts.warmup;
  return counts;
}

}  // namespace

PipelineTable build_overlapped(const ScheduleRequest& request, const char* name) {
  MicrobatchShape shape = interleaved_shape(request);
  shape.overlap_moe = true;
  PipelineTable table = make_table(request, name);
  const std::vector<Slot> slots = schedule_table(shape.num_microbatches, request.num_chunks, shape.group());
  for (int rank = 0; rank < request.num_stages; ++rank)
    OverlappedRank(request, table.ranks[static_cast<size_t>(rank)]).write(slots, overlapped_warmup(shape, rank));
  return add_transfers(table, {});
}

}  // namespace metroplex::plan
