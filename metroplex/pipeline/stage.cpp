#include "pipeline/stage.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::pipeline {

StageMemory stage_memory(const config::Memory& memory, const Segments& segments, const comm::Group& tp,
                         std::shared_ptr<nn::ActivationStore> store) {
  StageMemory how;
  how.recomputed = nn::recomputed_chunks(memory, segments);
  if (memory.distribute_saved_activations) how.split_over = tp;
  how.store = std::move(store);
  return how;
}

Stage::Stage(Segments segments, StageMemory memory) : segments_(std::move(segments)), memory_(std::move(memory)) {
  std::vector<nn::Param*> told;
  for (const auto& segment : segments_) segment->collect_params(told);
  for (nn::Param* param : told) {
    if (std::find(params_.begin(), params_.end(), param) == params_.end()) params_.push_back(param);
  }
  for (const nn::RecomputedChunk& chunk : memory_.recomputed) {
    const size_t done = parts_.empty() ? 0 : parts_.back().end;
    MPX_ASSERT(done <= chunk.begin && chunk.begin < chunk.end && chunk.end <= segments_.size(), "segments ",
               chunk.begin, " to ", chunk.end, " cannot be run again as one");
    for (size_t i = done; i < chunk.begin; ++i) parts_.push_back({i, i + 1, false});
    parts_.push_back({chunk.begin, chunk.end, true});
  }
  for (size_t i = parts_.empty() ? 0 : parts_.back().end; i < segments_.size(); ++i)
    parts_.push_back({i, i + 1, false});
}

at::Tensor Stage::forward(const at::Tensor& x_sbh, const nn::Microbatch& batch, StageRun* run) {
  at::Tensor x = x_sbh;
  if (run != nullptr) *run = {std::vector<StageRun::Part>(parts_.size()), batch};
  for (size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    nn::SegmentRun* segment_run = run != nullptr && !part.recomputed ? &run->parts[p].run : nullptr;
    if (run != nullptr && part.recomputed) {
      run->parts[p].input = nn::KeptInput(x, memory_.split_over, memory_.store.get());
    }
    for (size_t i = part.begin; i < part.end; ++i) {
      const int next = i + 1 < segments_.size() ? static_cast<int>(i + 1) : -1;
      x = run_forward({i, next}, x, batch, segment_run, memory_.store.get());
    }
  }
  return x;
}

at::Tensor Stage::backward(StageRun run, at::Tensor dy) {
  MPX_ASSERT(run.parts.size() == parts_.size(), "backward without its forward");
  while (!run.parts.empty()) {
    StageRun::Part last = std::move(run.parts.back());
    run.parts.pop_back();
    const size_t p = run.parts.size();
    const int next = p > 0 ? static_cast<int>(parts_[p - 1].begin) : -1;
    if (p > 0) {
      run.parts.back().run.saved.prefetch();
      run.parts.back().input.prefetch();
    }
    if (parts_[p].recomputed) {
      dy = run_again(parts_[p], last.input.take(), std::move(dy), run.batch, next);
    } else {
      dy = run_backward({parts_[p].begin, next}, std::move(last.run), dy);
    }
  }
  return dy;
}

at::Tensor Stage::run_again(const Part& part, at::Tensor x, at::Tensor dy, const nn::Microbatch& batch, int next) {
  std::vector<nn::SegmentRun> runs(part.end - part.begin);
  for (size_t i = part.begin; i < part.end; ++i) {
    const size_t after = std::min(i + 1, part.end - 1);  // the last one's backward follows its forward
    x = run_forward({i, static_cast<int>(after)}, x, batch, &runs[i - part.begin], nullptr);
  }
  x = at::Tensor();
  for (size_t i = part.end; i-- > part.begin;) {
    nn::SegmentRun last = std::move(runs.back());
    runs.pop_back();
    dy = run_backward({i, i > part.begin ? static_cast<int>(i - 1) : next}, std::move(last), dy);
  }
  return dy;
}

at::Tensor Stage::run_forward(Turn turn, const at::Tensor& x, const nn::Microbatch& batch, nn::SegmentRun* run,
                              nn::ActivationStore* store) {
  const int segment = static_cast<int>(turn.segment);
  if (moments_ != nullptr) moments_->before(segment, nn::Pass::forward, turn.next);
  at::Tensor y = nn::run_forward(*segments_[turn.segment], x, batch, run, store);
  if (moments_ != nullptr) moments_->after(segment, nn::Pass::forward);
  return y;
}

at::Tensor Stage::run_backward(Turn turn, nn::SegmentRun run, const at::Tensor& dy) {
  const int segment = static_cast<int>(turn.segment);
  if (moments_ != nullptr) moments_->before(segment, nn::Pass::backward, turn.next);
  at::Tensor dx = nn::run_backward(std::move(run), dy);
  if (moments_ != nullptr) moments_->after(segment, nn::Pass::backward);
  return dx;
}

}  // namespace metroplex::pipeline
