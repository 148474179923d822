// Hooks before and after the forward and the backward of every island of a stage. What happens around computation
// attaches here: gathering of sharded parameters (ZeRO) and the memory report.
#pragma once

namespace metroplex::nn {

enum class Pass { forward, backward };

// Which island begins or has ended. A forward that backward repeats (recompute) is a forward.
struct IslandEvent {
  Pass pass = Pass::forward;
  int block = 0;     // counted within one stage
  int next = -1;     // the block that comes after this one in the same call of the stage; -1: none
  int segment = 0;   // of the block: where the island begins
  int segments = 1;  // in the island
  // The first and the last island of the block in this pass; both, unless a border inside the block is cut.
  bool enters_block = true, leaves_block = true;
};

class StageObserver {
 public:
  virtual ~StageObserver() = default;
  virtual void before(const IslandEvent& event) = 0;
  virtual void after(const IslandEvent& event) = 0;
};

}  // namespace metroplex::nn
