// A stage is one model chunk of one pipeline rank: a list of blocks, whose segments run as consecutive autograd
// regions (`Region`). Observers, full recompute, activation offload and CUDA graphs are implemented here only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/listeners.h"
#include "comm/group.h"
#include "config/memory.h"
#include "nn/region.h"
#include "nn/stage_observer.h"
#include "nn/recompute.h"
#include "pipeline/stage_graphs.h"

namespace metroplex::pipeline {

// How a stage saves state between forward and backward. The default keeps all tensors that its layers save, in
// memory.
struct StageSaving {
  std::vector<nn::RecomputedChunk> recomputed;  // in order, disjoint
  comm::Group split_over;                       // shards the inputs of recomputed chunks; a group of one: no sharding
  std::shared_ptr<nn::ActivationStore> store;   // null: no offload
};
StageSaving stage_saving(const config::Memory& memory, const nn::Blocks& blocks, const comm::Group& tp,
                         std::shared_ptr<nn::ActivationStore> store);

// The autograd regions of a stage in forward order.
struct StageRegions {
  struct Entry {
    nn::Region region;
    int block = 0, segment = 0;      // where the region begins; segment index within the block
    bool first = true, last = true;  // in its block
    int graph = -1;                  // index among the captured regions of the stage; -1: runs eagerly
  };
  struct RegionRange {  // regions [begin, end): a single one, or those of a recomputed chunk
    size_t begin, end;
    bool recomputed;
  };
  std::vector<Entry> entries;
  std::vector<RegionRange> ranges;

  // True if the first or last region is captured; false for a stage without layers.
  bool is_first_captured() const { return !entries.empty() && entries.front().graph >= 0; }
  bool is_last_captured() const { return !entries.empty() && entries.back().graph >= 0; }
};

// State of one forward of one microbatch, held until its backward.
struct StageRun {
  // A single region uses `run`; a recomputed chunk uses `input` and `memo`.
  struct RegionRange {
    nn::RegionRun run;
    nn::SavedInput input;
    nn::RecomputeMemo memo;
  };
  const StageRegions* regions = nullptr;  // regions of the stage
  GraphInstance* graphs = nullptr;        // for the captured regions; null: all run eagerly
  std::vector<RegionRange> ranges;
  nn::Microbatch batch;
};

class Stage {
 public:
  explicit Stage(nn::Blocks blocks, StageSaving saving = {});
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  // Calls `observer` around every forward and backward of a region, in evaluation too: `before` in order of
  // registration, `after` in reverse. With `cuts`, every segment is a separate region from the next forward on, and
  // no graph is replayed. The observer is then called for each segment.
  void add_observer(std::string name, nn::StageObserver& observer, bool cuts = false);
  void remove_observer(const std::string& name);

  // Forms regions from the segments in `scope` and captures them in `instances`, which the stages of a rank share.
  // Call before the first forward. Throws like check_capturable().
  void enable_capture(std::shared_ptr<GraphInstances> instances, GraphScope scope);
  std::vector<const nn::Region*> captured_regions() const;

  // `x` is empty on the first stage. With `run`, the forward is differentiable and fills it. `terms` receives the
  // loss terms of the segments. instance: the graph instance for the captured regions; -1: they run eagerly.
  nn::Values forward(nn::Values x, const nn::Microbatch& batch, StageRun* run, nn::LossTerms* terms = nullptr,
                     int instance = -1);
  // Returns the gradients of the inputs, none on the first stage. `dy` has one gradient per output. Frees the run
  // region by region from the end. `deferred` receives the weight gradients, one entry per region; not supported with
  // graphs.
  nn::Gradients backward(StageRun run, nn::Gradients dy, const at::Tensor& loss_factor,
                         std::vector<nn::DeferredGradients>* deferred = nullptr);

  const std::vector<nn::Param*>& params() const { return params_; }  // forward order; a shared parameter once
  const nn::Blocks& blocks() const { return blocks_; }
  // The regions that the next forward runs.
  const StageRegions& regions() const;

 private:
  // Starts a forward over `regions` in graph instance `instance`. Returns null if the regions run eagerly.
  GraphInstance* begin_graphs(const StageRegions& regions, int instance, const nn::Microbatch& batch, bool evaluates);
  // Repeats the forwards of a recomputed chunk. Consumes `kept`.
  std::vector<nn::RegionRun> recompute_forward(const StageRun& run, const StageRegions::RegionRange& range,
                                               StageRun::RegionRange kept) const;
  void notify_before(const nn::RegionEvent& event) const;
  void notify_after(const nn::RegionEvent& event) const;

  struct Listener {
    nn::StageObserver* observer;
    bool cuts;
  };
  nn::Blocks blocks_;
  StageSaving saving_;
  base::Listeners<Listener> listeners_;
  StageRegions per_block_,
      per_segment_;  // whole: one region per block, split at captured parts; everywhere: per segment
  std::unique_ptr<StageGraphs> graphs_;
  std::vector<nn::Param*> params_;
};

}  // namespace metroplex::pipeline
