// Construction arguments of a rank's expert layers in addition to nn::LayerContext: groups and placement of experts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/world.h"
#include "config/config.h"

namespace metroplex::moe {

class LoadMeter;   // load_meter.h
class PagedStash;  // paged_stash.h

// Per layer: the load of every expert in each iteration (at least one) of a recorded run.
using RecordedLoads = std::map<int64_t, std::vector<std::vector<int64_t>>>;

// Reports the location on this rank where a buffer for expert rows was too small in a step. `text` is empty if none
// was. `factor`: capacity factor, relative to the even load, that would have sufficed.
struct NoRoom {
  std::string text;
  double factor = 0;
};

// State shared by the step and layers with the static_buffer dispatcher.
struct StaticBuffers {
  bool repeats = false;  // the step runs again after an overflow: the host reads the counts and rows are sent by them
  struct Layer {
    int64_t number = 0;
    at::Tensor wanted;  // [ep] int64: maximum rows per ep rank in a microbatch of the step, uncapped
    int64_t room = 0;   // buffer rows in the last microbatch
    int64_t even = 0;   // rows of an evenly loaded rank
  };
  std::vector<Layer> layers;
  NoRoom no_room(const device::Target& target) const;
};

// Replica placement for one microbatch of a layer (plan/echo.h). C: replica slots of all ep ranks.
struct ReplicaPlan {
  at::Tensor owners;       // [C] int32: the expert of each slot, -1: none
  at::Tensor counts;       // [ep, E] int64: rows of each source rank for each expert
  at::Tensor source_rows;  // [ep, C] int64: rows from each source rank to each replica
  at::Tensor loads;        // [2, ep] int64: rows of each rank without and with replicas
};

struct ExpertContext {
  // The ranks that tokens of a layer may visit: those that differ only in etp and ep. Member i holds shard i % etp of
  // the experts [p E / ep, (p + 1) E / ep) with p = i / etp.
  comm::Group experts;
  int etp = 1, ep = 1;  // sizes
  // Replica slots of each rank, after its local experts. Destination slots of tokens are, for each ep rank, the E /
  // ep local experts, then the replica slots.
  int slots = 0;
  // The ranks of `experts` with the same etp shard, in the order of ep. Replica weights are transferred in this
  // group.
  comm::Group replicas;
  // Subgroups of `experts` for the hierarchical dispatcher: the ranks of the own node, in the order of `experts`, and
  // the ranks with the same index on every node.
  comm::Group node, across;
  comm::Group inner;            // ranks that hold the shards of one expert; size one without low precision or codes
  comm::Group holders;          // ranks that hold shards of the same experts; size one without delayed scales
  comm::Group tp_cp;            // ranks that hold the tokens of one microbatch
  comm::Group tp_dp_cp;         // ranks that hold the tokens of all concurrent microbatches
  int data_parallel = 1;        // concurrent microbatches
  bool per_token_loss = false;  // train.calculate_per_token_loss
  bool captures_shared_expert = false;
  std::shared_ptr<LoadMeter> meter;  // null: loads are not counted
  // [kernels::kStepFlags] int32. Layers set flags that must prevent the step's update. No flags are checked if
  // it is undefined.
  at::Tensor step_flags;
  std::shared_ptr<StaticBuffers> buffers;  // null: rows over capacity are dropped
  std::shared_ptr<PagedStash> stash;       // null: backward saves whole buffers
  // Receives every replica plan of a forward that counts (LoadMeter::count). May be null.
  std::function<void(int64_t layer, const ReplicaPlan&)> on_replica_plan;
  std::shared_ptr<const RecordedLoads> forced_loads;  // forced loads of this rank's tokens; null: none

  int etp_rank() const { return experts.index() % etp; }
  int ep_rank() const { return experts.index() / etp; }
  int64_t local_groups(int64_t num_experts) const { return num_experts / ep + slots; }
  int64_t columns(int64_t num_experts) const { return ep * local_groups(num_experts); }
};

// Returns whether graphs that end inside an expert layer contain its shared expert, which then runs before the
// dispatch plan in a separate segment. With model.moe_shared_expert_overlap the graph contains fc1 and the gate's
// score, and the rest runs while rows are exchanged.
bool captures_shared_expert(const config::Train& train);

// Creates groups: all ranks of the world must call it if the model has experts.
ExpertContext expert_context(const comm::World& world, const config::Config& config);

}  // namespace metroplex::moe
