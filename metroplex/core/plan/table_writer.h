// Helper of the schedule builders. It appends actions to one rank's list and sets the peer of a send or receive. It
// omits transfers at the ends of the model and groups adjacent p2p actions into batched calls.
#pragma once

#include <vector>

#include "plan/pipeline_table.h"

namespace metroplex::plan {

// One forward or backward on one rank.
struct Slot {
  int microbatch = 0;
  int chunk = 0;
  bool operator==(const Slot&) const = default;
};

// A builder may complete a group with microbatch numbers beyond the table; their actions are omitted.
class TableWriter {
 public:
  TableWriter(PipelineTable& table, int rank) : table_(table), rank_(rank) {}

  void forward(Slot slot) { add(ActionKind::forward, slot, -1); }
  void backward(Slot slot) { add(ActionKind::backward, slot, -1); }

  // Each is a no-op if the border is an end of the model or is inside this rank. A sent output is freed when the
  // batch of its send is closed.
  void send_forward(Slot slot);
  void recv_forward(Slot slot);
  void send_backward(Slot slot);
  void recv_backward(Slot slot);

  // Combines the p2p actions since the last compute action into one batched call, if there is more than one. Then
  // appends the frees of the sent outputs.
  void close_batch();

  bool has_previous(Slot slot) const { return peer(slot, -1) >= 0; }
  bool has_next(Slot slot) const { return peer(slot, 1) >= 0; }

 private:
  int peer(Slot slot, int by) const { return table_.placement().peer({rank_, slot.chunk}, by); }
  void add(ActionKind kind, Slot slot, int peer);

  PipelineTable& table_;
  int rank_;
  int next_batch_ = 0;
  size_t open_from_ = 0;  // first p2p action of the open batch
  std::vector<Slot> sent_;
};

struct ScheduleRequest;
PipelineTable make_table(const ScheduleRequest& request, const char* name);
// The same with two chunks per rank in a V. Throws base::Error("plan") if the request has another number of chunks.
PipelineTable make_v_table(const ScheduleRequest& request, const char* name);

}  // namespace metroplex::plan
