#include "plan/table_writer.h"

#include "base/error.h"
#include "plan/schedules/registry.h"

namespace metroplex::plan {

void TableWriter::add(ActionKind kind, Slot slot, int peer) {
  if (slot.microbatch >= table_.num_microbatches) return;
  auto& actions = table_.ranks[static_cast<size_t>(rank_)];
  actions.push_back({kind, slot.microbatch, slot.chunk, peer, -1});
  if (!is_p2p(kind)) open_from_ = actions.size();
}

void TableWriter::send_forward(Slot slot) {
  if (!has_next(slot)) return;
  add(ActionKind::send_forward, slot, peer(slot, 1));
  sent_.push_back(slot);
}

void TableWriter::recv_forward(Slot slot) {
  if (has_previous(slot)) add(ActionKind::recv_forward, slot, peer(slot, -1));
}

void TableWriter::send_backward(Slot slot) {
  if (has_previous(slot)) add(ActionKind::send_backward, slot, peer(slot, -1));
}

void TableWriter::recv_backward(Slot slot) {
  if (has_next(slot)) add(ActionKind::recv_backward, slot, peer(slot, 1));
}

void TableWriter::close_batch() {
  auto& actions = table_.ranks[static_cast<size_t>(rank_)];
  if (actions.size() - open_from_ > 1) {
    for (size_t i = open_from_; i < actions.size(); ++i) actions[i].batch = next_batch_;
    ++next_batch_;
  }
  open_from_ = actions.size();
  for (const Slot& slot : sent_) add(ActionKind::free, slot, -1);
  sent_.clear();
}

PipelineTable make_table(const ScheduleRequest& request, const char* name) {
  PipelineTable table;
  table.num_stages = request.num_stages;
  table.num_chunks = request.num_chunks;
  table.num_microbatches = request.num_microbatches;
  table.forward_only = request.forward_only;
  table.name = name;
  table.ranks.resize(static_cast<size_t>(request.num_stages));
  return table;
}

PipelineTable make_v_table(const ScheduleRequest& request, const char* name) {
  MPX_CHECK(request.num_chunks == 2, "plan", "schedule ", name, " holds two chunks a rank, ",
            "parallel.virtual_pipeline_model_parallel_size is ", request.num_chunks, "; set it to 2");
  PipelineTable table = make_table(request, name);
  table.v_shaped = true;
  return table;
}

}  // namespace metroplex::plan
