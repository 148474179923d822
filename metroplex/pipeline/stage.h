// A stage is one model chunk of one pipeline rank: a list of blocks, whose segments run as islands one after another.
// This is the one place that adds what surrounds computation: island observers, full recompute, offload and graphs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/listeners.h"
#include "comm/group.h"
#include "config/memory.h"
#include "nn/island.h"
#include "nn/stage_observer.h"
#include "nn/recompute.h"
#include "pipeline/stage_graphs.h"

namespace metroplex::pipeline {

// What a stage keeps between forward and backward; by default everything its layers ask for, in memory.
struct StageSaving {
  std::vector<nn::RecomputedChunk> recomputed;  // in order, disjoint
  comm::Group split_over;                       // splits the inputs of recomputed chunks; a group of one: whole
  std::shared_ptr<nn::ActivationStore> store;   // null: no offload
};
StageSaving stage_saving(const config::Memory& memory, const nn::Blocks& blocks, const comm::Group& tp,
                         std::shared_ptr<nn::ActivationStore> store);

// The islands of a stage in forward order.
struct StageIslands {
  struct Place {
    nn::Island island;
    int block = 0, segment = 0;      // where it begins; the segment counts within the block
    bool first = true, last = true;  // of its block
    int graph = -1;                  // index among the captured islands of the stage; -1: runs eagerly
  };
  struct Span {  // islands [begin, end): a single one, or those of a recomputed chunk
    size_t begin, end;
    bool recomputed;
  };
  std::vector<Place> places;
  std::vector<Span> spans;

  // Whether the first and the last island are captured; false where the stage has no layers.
  bool begins_captured() const { return !places.empty() && places.front().graph >= 0; }
  bool ends_captured() const { return !places.empty() && places.back().graph >= 0; }
};

// What one forward of one microbatch holds until its backward.
struct StageRun {
  // Of a single island: `run`. Of a recomputed chunk: `input` and `memo`.
  struct Span {
    nn::IslandRun run;
    nn::SavedInput input;
    nn::RecomputeMemo memo;
  };
  const StageIslands* islands = nullptr;  // of the stage
  GraphInstance* graphs = nullptr;        // of the captured islands; null: all run eagerly
  std::vector<Span> spans;
  nn::Microbatch batch;
};

class Stage {
 public:
  explicit Stage(nn::Blocks blocks, StageSaving saving = {});
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Calls `observer` around every forward and backward of an island, in evaluation too: `before` in order of
  // registration, `after` in reverse. With `cuts`, from the next forward on, every segment is an island of its own
  // and no graph is replayed, so that the observer sees each segment.
  void listen(std::string name, nn::StageObserver& observer, bool cuts = false);
  void unlisten(const std::string& name);

  // Makes islands of the segments in `scope`, to be captured in `instances`, which the stages of a rank share. Called
  // before the first forward. Throws as check_capturable().
  void capture_in(std::shared_ptr<GraphInstances> instances, GraphScope scope);
  std::vector<const nn::Island*> captured_islands() const;

  // `x` is empty on the first stage. With `run` the forward is differentiable and fills it. `terms` gets the loss
  // terms of the segments. instance: the graph instance in which the captured islands run; -1: they run eagerly.
  nn::Values forward(nn::Values x, const nn::Microbatch& batch, StageRun* run, nn::LossTerms* terms = nullptr,
                     int instance = -1);
  // Gradients of the inputs, none on the first stage. `dy` has one per output. Consumes the run, island by island
  // from the end. With `deferred` the weight gradients are deferred to it, one entry per island; not with graphs.
  nn::Gradients backward(StageRun run, nn::Gradients dy, const at::Tensor& loss_factor,
                         std::vector<nn::DeferredGradients>* deferred = nullptr);

  const std::vector<nn::Param*>& params() const { return params_; }  // forward order, a shared one once
  const nn::Blocks& blocks() const { return blocks_; }
  // The islands that the next forward will run.
  const StageIslands& islands() const;

 private:
  // Called at the begin of a forward over `islands`. Null: they run eagerly.
  GraphInstance* begin_graphs(const StageIslands& islands, int instance, const nn::Microbatch& batch, bool evaluates);
  // The forwards of a recomputed chunk once more. Consumes what the first ones left.
  std::vector<nn::IslandRun> forward_again(const StageRun& run, const StageIslands::Span& span,
                                           StageRun::Span kept) const;
  void tell_before(const nn::IslandEvent& event) const;
  void tell_after(const nn::IslandEvent& event) const;

  struct Listener {
    nn::StageObserver* observer;
    bool cuts;
  };
  nn::Blocks blocks_;
  StageSaving saving_;
  base::Listeners<Listener> listeners_;
  StageIslands whole_, everywhere_;  // whole: a block an island, but for captured parts; everywhere: a segment each
  std::unique_ptr<StageGraphs> graphs_;
  std::vector<nn::Param*> params_;
};

}  // namespace metroplex::pipeline
