#include "pipeline/stage.h"

#include "base/error.h"

namespace metroplex::pipeline {

Stage::Stage(std::vector<std::unique_ptr<nn::Segment>> segments) : segments_(std::move(segments)) {
  for (const auto& segment : segments_) segment->collect_params(params_);
}

at::Tensor Stage::forward(const at::Tensor& x_sbh, const nn::Microbatch& batch, StageRun* run) {
  at::Tensor x = x_sbh;
  if (run) run->resize(segments_.size());
  for (size_t i = 0; i < segments_.size(); ++i)
    x = nn::run_forward(*segments_[i], x, batch, run ? &(*run)[i] : nullptr);
  return x;
}

at::Tensor Stage::backward(StageRun run, at::Tensor dy) {
  MPX_ASSERT(run.size() == segments_.size(), "backward without its forward");
  while (!run.empty()) {
    nn::SegmentRun last = std::move(run.back());
    run.pop_back();
    dy = nn::run_backward(std::move(last), dy);
  }
  return dy;
}

}  // namespace metroplex::pipeline
