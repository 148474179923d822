#include "plan/schedules/registry.h"

#include <algorithm>

#include "base/error.h"
#include "plan/megatron_order.h"

namespace metroplex::plan {
namespace {

// Writes one rank's actions. All ranks use the same slot table, and rank r is r steps after rank 0. The tensor that
// the previous rank sends after its k-th forward is received after this rank's (k-1)-th. The tensor that the last
// rank sends after its k-th forward is received on rank 0 after num_stages - 1 further forwards. Rank 0 may need it
// only later.
class RankBuilder {
 public:
  RankBuilder(PipelineTable& table, int rank, const std::vector<Slot>& slots, const WarmupCounts& counts)
      : table_(table), writer_(table, rank), rank_(rank), slots_(slots), counts_(counts) {}

  void write(bool overlap_p2p) {
    writer_.recv_forward(forward_slot(0));
    for (int k = 0; k < counts_.warmup; ++k) {
      writer_.forward(forward_slot(k));
      exchange_forward(k);
      const bool turn = k + 1 == counts_.warmup && counts_.remaining > 0 && !table_.forward_only;
      if (turn) writer_.recv_backward(backward_slot(0));
      writer_.close_batch();
    }
    if (table_.forward_only) return;
    for (int k = 0; k < counts_.remaining; ++k) steady(k, overlap_p2p);
    if (counts_.remaining == 0) writer_.recv_backward(backward_slot(0));
    for (int k = counts_.remaining; k < counts_.total; ++k) {
      writer_.backward(backward_slot(k));
      exchange_backward(k);
      writer_.close_batch();
    }
  }

 private:
  Slot forward_slot(int k) const { return slots_[static_cast<size_t>(k)]; }
  Slot backward_slot(int k) const {
    const Slot slot = slots_[static_cast<size_t>(k)];
    return {slot.microbatch, table_.num_chunks - 1 - slot.chunk};
  }

  void steady(int k, bool overlap_p2p) {
    const int ahead = counts_.warmup + k;
    if (k == 0 && counts_.warmup == 0) writer_.recv_backward(backward_slot(0));
    writer_.forward(forward_slot(ahead));
    if (overlap_p2p) {
      exchange_forward(ahead);
      writer_.close_batch();
    }
    writer_.backward(backward_slot(k));
    if (!overlap_p2p) exchange_forward(ahead);
    exchange_backward(k);
    writer_.close_batch();
  }

  void exchange_forward(int k) {
    writer_.send_forward(forward_slot(k));
    if (rank_ > 0) {
      if (k + 1 < counts_.total) writer_.recv_forward(forward_slot(k + 1));
    } else if (k >= table_.num_stages - 1) {
      const Slot sent = forward_slot(k - (table_.num_stages - 1));
      if (sent.chunk + 1 < table_.num_chunks) writer_.recv_forward({sent.microbatch, sent.chunk + 1});
    }
  }

  void exchange_backward(int k) {
    writer_.send_backward(backward_slot(k));
    if (rank_ < table_.num_stages - 1) {
      if (k + 1 < counts_.total) writer_.recv_backward(backward_slot(k + 1));
    } else if (k >= table_.num_stages - 1) {
      const Slot sent = backward_slot(k - (table_.num_stages - 1));
      if (sent.chunk > 0) writer_.recv_backward({sent.microbatch, sent.chunk - 1});
    }
  }

  PipelineTable& table_;
  TableWriter writer_;
  int rank_;
  const std::vector<Slot>& slots_;
  WarmupCounts counts_;
};

// Returns the maximum number of live forwards over microbatches below `num_microbatches`. With complete groups it is
// warm-up + 1.
int most_live(const std::vector<Slot>& slots, const WarmupCounts& counts, int num_microbatches) {
  int live = 0, most = 0;
  for (int k = 0; k < counts.total; ++k) {
    if (slots[static_cast<size_t>(k)].microbatch < num_microbatches) most = std::max(most, ++live);
    const int back = k - counts.warmup;
    if (back >= 0 && slots[static_cast<size_t>(back)].microbatch < num_microbatches) --live;
  }
  return most;
}

}  // namespace

PipelineTable build_interleaved(const ScheduleRequest& request) {
  MPX_CHECK(request.num_stages > 1, "plan",
            "schedule interleaved needs pipeline_model_parallel_size > 1; use none for one pipeline rank");
  const int group = request.microbatch_group_size;
  MPX_CHECK(group == 0 || group >= request.num_stages, "plan", "microbatch_group_size_per_vp_stage = ", group,
            ": must be at least pipeline_model_parallel_size (", request.num_stages, "); raise it or leave it 0");
  if (request.overlaps_experts && !request.forward_only) return build_overlapped(request, "interleaved");
  const MicrobatchShape shape = interleaved_shape(request);
  PipelineTable table = make_table(request, "interleaved");
  const std::vector<Slot> slots = schedule_table(shape.num_microbatches, request.num_chunks, shape.group());
  for (int rank = 0; rank < request.num_stages; ++rank) {
    const WarmupCounts counts = count_warmup(shape, rank);
    RankBuilder(table, rank, slots, counts).write(request.overlap_p2p);
    table.live_activation_bounds.push_back(request.forward_only ? 0
                                                                : most_live(slots, counts, request.num_microbatches));
  }
  return table;
}

}  // namespace metroplex::plan
