// A stage is one model chunk of one pipeline rank: a list of segments, run as islands one after another.
#pragma once

#include <memory>
#include <vector>

#include "nn/segment.h"

namespace metroplex::pipeline {

// What one forward of one microbatch holds until its backward: one run a segment.
using StageRun = std::vector<nn::SegmentRun>;

class Stage {
 public:
  explicit Stage(std::vector<std::unique_ptr<nn::Segment>> segments);

  // x_sbh is undefined on the first stage. With `run` the forward is differentiable and fills it.
  at::Tensor forward(const at::Tensor& x_sbh, const nn::Microbatch& batch, StageRun* run);
  // Gradient of the input, undefined on the first stage. Consumes the run, segment by segment from the end.
  at::Tensor backward(StageRun run, at::Tensor dy);

  const std::vector<nn::Param*>& params() const { return params_; }
  const std::vector<std::unique_ptr<nn::Segment>>& segments() const { return segments_; }

 private:
  std::vector<std::unique_ptr<nn::Segment>> segments_;
  std::vector<nn::Param*> params_;
};

}  // namespace metroplex::pipeline
