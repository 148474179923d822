// A stage is one model chunk of one pipeline rank: a list of segments, run as islands one after another. Around them
// hang, in this one place, the four moments of a segment, full recompute and offload.
#pragma once

#include <memory>
#include <vector>

#include "comm/group.h"
#include "config/memory.h"
#include "nn/moments.h"
#include "nn/recompute.h"
#include "nn/segment.h"

namespace metroplex::pipeline {

using Segments = std::vector<std::unique_ptr<nn::Segment>>;

// What a stage keeps between forward and backward; by default everything its layers ask for, in memory.
struct StageMemory {
  std::vector<nn::RecomputedChunk> recomputed;  // in order, apart from each other
  comm::Group split_over;                       // holds the inputs of recomputed chunks in equal parts; one: whole
  std::shared_ptr<nn::ActivationStore> store;   // null: memory
};
StageMemory stage_memory(const config::Memory& memory, const Segments& segments, const comm::Group& tp,
                         std::shared_ptr<nn::ActivationStore> store);

// What one forward of one microbatch holds until its backward.
struct StageRun {
  // One segment, or a chunk that will run again.
  struct Part {
    nn::SegmentRun run;
    nn::KeptInput input;
  };
  std::vector<Part> parts;
  nn::Microbatch batch;
};

class Stage {
 public:
  explicit Stage(Segments segments, StageMemory memory = {});

  // Null: none. Told of every forward and backward of a segment, with or without a run.
  void set_moments(nn::Moments* moments) { moments_ = moments; }

  // x_sbh is undefined on the first stage. With `run` the forward is differentiable and fills it.
  at::Tensor forward(const at::Tensor& x_sbh, const nn::Microbatch& batch, StageRun* run);
  // Gradient of the input, undefined on the first stage. Consumes the run, segment by segment from the end.
  at::Tensor backward(StageRun run, at::Tensor dy);

  const std::vector<nn::Param*>& params() const { return params_; }  // forward order, a shared one once
  const Segments& segments() const { return segments_; }

 private:
  struct Part {  // segments [begin, end): one, or a chunk
    size_t begin, end;
    bool recomputed;
  };
  // Which segment, and whose turn comes after it.
  struct Turn {
    size_t segment;
    int next;
  };
  at::Tensor run_forward(Turn turn, const at::Tensor& x, const nn::Microbatch& batch, nn::SegmentRun* run,
                         nn::ActivationStore* store);
  at::Tensor run_backward(Turn turn, nn::SegmentRun run, const at::Tensor& dy);
  // Forward and backward of a recomputed chunk; `next`: whose turn comes after it.
  at::Tensor run_again(const Part& part, at::Tensor x, at::Tensor dy, const nn::Microbatch& batch, int next);

  Segments segments_;
  StageMemory memory_;
  nn::Moments* moments_ = nullptr;
  std::vector<Part> parts_;
  std::vector<nn::Param*> params_;
};

}  // namespace metroplex::pipeline
