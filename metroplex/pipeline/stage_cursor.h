// One microbatch on its way through a stage, an island at a time; Stage::forward and backward are these from end to
// end.
#pragma once

#include "pipeline/stage.h"

namespace metroplex::pipeline {

class ForwardCursor {
 public:
  struct Call {
    const nn::Microbatch& batch;  // outlives the cursor
    StageRun* run = nullptr;      // null: evaluation
    nn::LossTerms* terms = nullptr;
    int live_set = -1;  // see Stage::forward
  };
  // `x` is empty on the first stage.
  ForwardCursor(Stage& stage, nn::Values x, const Call& call);

  bool done() const { return island_ == islands_.places.size(); }
  // The next island. Not when done.
  void advance();
  // The outputs; once, when done.
  nn::Values take();

 private:
  Stage& stage_;
  const StageIslands& islands_;
  Call call_;
  LiveSet* graphs_;
  nn::Values x_;
  size_t island_ = 0, span_ = 0;
};

class BackwardCursor {
 public:
  BackwardCursor(Stage& stage, StageRun run, nn::Gradients dy, at::Tensor loss_factor);

  bool done() const { return run_.spans.empty() && repeated_.empty() && !repeating_; }
  // The next island's backward, or, of a chunk that is run again, the next forward.
  void advance();
  // Gradients of the inputs; once, when done.
  nn::Gradients take();

 private:
  void begin_span();
  void forward_again();
  void backward(nn::IslandRun* run, size_t island);
  int block_before(size_t span, int block) const;

  Stage& stage_;
  StageRun run_;
  nn::Gradients dy_;
  at::Tensor loss_factor_;
  // The span at work, where it is run again: its forwards first.
  StageIslands::Span span_{};
  size_t span_index_ = 0;
  bool repeating_ = false;
  nn::Values x_;
  std::vector<nn::IslandRun> repeated_;
};

}  // namespace metroplex::pipeline
