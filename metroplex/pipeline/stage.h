// A stage is one model chunk of one pipeline rank: a list of blocks, whose segments run as islands one after another.
// Around them hang, in this one place, the observers of its islands, full recompute, offload and graphs.
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
#include "pipeline/graph_scope.h"
#include "pipeline/stage_graphs.h"

namespace metroplex::pipeline {

// What a stage keeps between forward and backward; by default everything its layers ask for, in memory.
struct StageSaving {
  std::vector<nn::RecomputedChunk> recomputed;  // in order, apart from each other
  comm::Group split_over;                       // holds the inputs of recomputed chunks in equal parts; one: whole
  std::shared_ptr<nn::ActivationStore> store;   // null: memory
};
StageSaving stage_saving(const config::Memory& memory, const nn::Blocks& blocks, const comm::Group& tp,
                         std::shared_ptr<nn::ActivationStore> store);

// The islands of a stage in forward order.
struct StageIslands {
  struct Place {
    nn::Island island;
    int block = 0, segment = 0;      // where it begins; the segment counts within the block
    bool first = true, last = true;  // of its block
    int graph = -1;                  // among the captured islands of the stage; -1: runs as it is
  };
  struct Span {  // islands [begin, end): one, or those of a chunk
    size_t begin, end;
    bool recomputed;
  };
  std::vector<Place> places;
  std::vector<Span> spans;
};

// What one forward of one microbatch holds until its backward.
struct StageRun {
  // One island, or a chunk that will run again.
  struct Span {
    nn::IslandRun run;
    nn::SavedInput input;
  };
  const StageIslands* islands = nullptr;  // of the stage
  LiveSet* graphs = nullptr;              // of the captured islands; null: they run as they are
  std::vector<Span> spans;
  nn::Microbatch batch;
};

class Stage {
 public:
  explicit Stage(nn::Blocks blocks, StageSaving saving = {});
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Told of every forward and backward of an island, with or without a run: `before` in order of registration,
  // `after` in reverse. An observer leaves islands whole; with `cuts` every border between segments is cut from the
  // next forward on, and no graph is run.
  void listen(std::string name, nn::StageObserver& observer, bool cuts = false);
  void unlisten(const std::string& name);

  // What is in `scope` makes islands of its own, which can be graphs of `device`; it outlives the stage. Before the
  // first forward. Throws as check_capturable().
  void capture_on(cuda::GraphDevice& device, GraphScope scope, at::Device batches_on,
                  std::shared_ptr<GradientPlaces> gradients);
  const StageGraphs* graphs() const { return graphs_.get(); }
  std::vector<const nn::Island*> captured_islands() const;

  // `x` is empty on the first stage. With `run` the forward is differentiable and fills it. `terms` gets the loss
  // terms of the segments. live_set: the islands in scope run as its graphs; -1: as they are.
  nn::Values forward(nn::Values x, const nn::Microbatch& batch, StageRun* run, nn::LossTerms* terms = nullptr,
                     int live_set = -1);
  // Gradients of the inputs, none on the first stage. `dy` has one an output. Consumes the run, island by island from
  // the end.
  nn::Gradients backward(StageRun run, nn::Gradients dy, const at::Tensor& loss_factor);

  const std::vector<nn::Param*>& params() const { return params_; }  // forward order, a shared one once
  const nn::Blocks& blocks() const { return blocks_; }
  // How the next forward cuts the stage.
  const StageIslands& islands() const;
  const StageSaving& saving() const { return saving_; }

  // For the cursors: the graphs of a forward over `islands` that begins; null where it runs as it is.
  LiveSet* begin_graphs(const StageIslands& islands, int live_set, const nn::Microbatch& batch, bool evaluates);
  // Around one island; for the cursors.
  void tell_before(const nn::IslandEvent& event) const;
  void tell_after(const nn::IslandEvent& event) const;

 private:
  struct Listener {
    nn::StageObserver* observer;
    bool cuts;
  };
  nn::Blocks blocks_;
  StageSaving saving_;
  base::Listeners<Listener> listeners_;
  StageIslands whole_, everywhere_;  // blocks as islands, cut where the scope ends; segments as islands
  std::unique_ptr<StageGraphs> graphs_;
  std::vector<nn::Param*> params_;
};

}  // namespace metroplex::pipeline
