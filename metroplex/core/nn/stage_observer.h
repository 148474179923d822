// Hooks before and after the forward and the backward of every autograd region (`Region`) of a stage. ZeRO's
// gathering of sharded parameters and the memory report attach here.
#pragma once

namespace metroplex::nn {

enum class Pass { forward, backward };

// Identifies the region that begins or has ended. A forward that backward repeats (recompute) is a forward.
struct RegionEvent {
  Pass pass = Pass::forward;
  int block = 0;     // index within the stage
  int next = -1;     // the next block in the same call of the stage; -1: none
  int segment = 0;   // index within the block of the region's first segment
  int segments = 1;  // number of segments in the region
  // First and last region of the block in this pass; both are true unless the block is split into several regions.
  bool enters_block = true, leaves_block = true;
};

class StageObserver {
 public:
  virtual ~StageObserver() = default;
  virtual void before(const RegionEvent& event) = 0;
  virtual void after(const RegionEvent& event) = 0;
};

}  // namespace metroplex::nn
