#include "plan/schedules/registry.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "plan/greedy.h"
#include "plan/table_writer.h"
#include "plan/transfers.h"

namespace metroplex::plan {
namespace {

// The compute actions of one rank. Chunk 0 runs towards the last rank, chunk 1 back to the first. Microbatches beyond
// the table complete the order and are left out.
class DualPipeRank {
 public:
  DualPipeRank(PipelineTable& table, int rank, int padded, bool overlaps)
      : table_(table), rank_(rank), before_turn_(table.num_stages - 1 - rank), padded_(padded), overlaps_(overlaps) {}

  void write() {
    for (int i = 0; i < 2 * before_turn_; ++i) forward(0);
    for (int i = 0; i <= rank_; ++i) forward(0), forward(1);
    for (int i = 0; i < before_turn_; ++i) backward(1, true), weight(), forward(1);
    for (int i = 0; i < padded_ - 2 * table_.num_stages + rank_ + 1; ++i) {
      forward_and_backward(0, 1);
      forward_and_backward(1, 0);
    }
    for (int i = 0; i < before_turn_; ++i) backward(1, false), forward_and_backward(1, 0);
    // The second half of the last backwards postpones its weight gradients.
    const int half = (rank_ + 1) / 2;
    for (int i = 0; i <= rank_; ++i) {
      backward(1, rank_ % 2 == 1 ? i >= half : i > half);
      backward(0, i >= half);
    }
    for (int i = 0; i < before_turn_; ++i) weight(), backward(0, true);
    while (!postponed_.empty()) weight();
  }

 private:
  // Returns false for a microbatch beyond the table.
  bool add(ActionKind kind, Slot slot) {
    if (slot.microbatch >= table_.num_microbatches) return false;
    table_.ranks[static_cast<size_t>(rank_)].push_back({kind, slot.microbatch, slot.chunk, -1, -1});
    return true;
  }
  bool forward(int chunk) { return add(ActionKind::forward, {forwards_[chunk]++, chunk}); }
  void forward_and_backward(int chunk, int back) {
    const bool pairs = overlaps_ && backwards_[back] < table_.num_microbatches;
    if (forward(chunk) && pairs) table_.ranks[static_cast<size_t>(rank_)].back().in_turns = true;
    backward(back, false);
  }
  void backward(int chunk, bool postpones) {
    const Slot slot{backwards_[chunk]++, chunk};
    add(ActionKind::backward, slot);
    if (postpones) postponed_.push_back(slot);
    else add(ActionKind::weight, slot);
  }
  void weight() {
    MPX_ASSERT(!postponed_.empty(), "rank ", rank_, " has no postponed weight gradients");
    add(ActionKind::weight, postponed_.front());
    postponed_.pop_front();
  }

  PipelineTable& table_;
  int rank_, before_turn_, padded_;
  bool overlaps_;
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  std::deque<Slot> postponed_;
};

}  // namespace

PipelineTable build_dualpipe_v(const ScheduleRequest& request) {
  PipelineTable table = make_v_table(request, "dualpipe_v");
  if (request.forward_only) return add_transfers(forward_order(table), {});
  const int padded = std::max(request.num_microbatches, 2 * request.num_stages);
  for (int rank = 0; rank < request.num_stages; ++rank)
    DualPipeRank(table, rank, padded, request.overlaps_experts).write();
  return add_transfers(table, {});
}

}  // namespace metroplex::plan
