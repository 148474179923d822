// What the layers of experts of a rank are made with, beside nn::LayerContext: where experts lie and who shares them.
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

// By layer: the load of every expert in each iteration of a recorded run, at least one.
using RecordedLoads = std::map<int64_t, std::vector<std::vector<int64_t>>>;

// Where rows of experts found no room in a step, on this rank. `text` is empty: nowhere. `factor`: of the even load,
// with which all of them would have found some.
struct NoRoom {
  std::string text;
  double factor = 0;
};

// What layers with the dispatcher static_buffer and the step share.
struct StaticBuffers {
  bool repeats =
      false;  // the step runs again because rows found no room: they are sent by counts that the host reads
  struct Layer {
    int64_t number = 0;
    at::Tensor wanted;  // [ep] int64, of the step: the most rows for a rank of ep in a microbatch, with room or not
    int64_t room = 0;   // rows of a buffer, of the last microbatch
    int64_t even = 0;   // rows that come when experts are loaded evenly
  };
  std::vector<Layer> layers;
  NoRoom no_room(const cuda::Target& target) const;  // "layer 3: 1200 rows for rank 1 of ep, which has room for 1000"
};

// Which experts are cloned where, of one microbatch of a layer (plan/echo.h). C clones: the slots of each rank of ep.
struct ClonePlan {
  at::Tensor owners;       // [C] int32: the expert that a slot is a clone of, -1: none
  at::Tensor counts;       // [ep, E] int64: rows of each source rank for each expert
  at::Tensor source_rows;  // [ep, C] int64: of each source rank, those that go to each clone
  at::Tensor loads;        // [2, ep] int64: rows of each rank without clones and with them
};

struct ExpertContext {
  // The ranks that tokens of a layer may visit: those that differ in etp and ep only. Member i holds part i % etp of
  // the experts [p E / ep, (p + 1) E / ep) with p = i / etp.
  comm::Group experts;
  int etp = 1, ep = 1;  // sizes
  // Of each rank, behind its home experts, for clones of experts of other ranks. With them the columns that tokens
  // are sent to are the local groups of each rank of ep in turn: E / ep home experts, then the slots.
  int slots = 0;
  // Those of `experts` with the same part: weights of clones travel here, member i from rank i of ep.
  comm::Group clones;
  // Of the same ranks, for the hierarchical dispatcher: those of the own node, in the order of `experts`, and those
  // at the same place of all nodes.
  comm::Group node, across;
  comm::Group tp_cp;                    // whose ranks hold the tokens of one microbatch
  comm::Group tp_dp_cp;                 // and of all microbatches that run at one time
  int data_parallel = 1;                // microbatches that run at one time
  bool per_token_loss = false;          // train.calculate_per_token_loss
  bool captures_shared_expert = false;  // captures_shared_expert()
  std::shared_ptr<LoadMeter> meter;     // null: not counted
  // [cuda::kernels::kStepFlags] int32, where layers raise what must keep a step from updating. Undefined: nobody
  // looks.
  at::Tensor step_flags;
  std::shared_ptr<StaticBuffers> buffers;  // null: whoever finds no room is left out
  std::shared_ptr<PagedStash> stash;       // null: backward keeps whole buffers
  // Is called with every plan of clones of a forward that counts (LoadMeter::count). Null: nobody wants to see them.
  std::function<void(int64_t layer, const ClonePlan&)> on_clone_plan;
  std::shared_ptr<const RecordedLoads> forced_loads;  // what this rank's tokens are dealt out by; null: nothing

  int etp_rank() const { return experts.index() % etp; }
  int ep_rank() const { return experts.index() / etp; }
  int64_t local_groups(int64_t num_experts) const { return num_experts / ep + slots; }
  int64_t columns(int64_t num_experts) const { return ep * local_groups(num_experts); }
};

// Whether graphs that end inside a layer of experts contain its shared expert, which then runs before the dispatch
// plan in a segment of its own. With model.moe_shared_expert_overlap they contain fc1 and the gate's score, and the
// rest runs while rows are exchanged.
bool captures_shared_expert(const config::Train& train);

// Makes groups: all ranks of the world call it, where the model has experts.
ExpertContext expert_context(const comm::World& world, const config::Config& config);

}  // namespace metroplex::moe
