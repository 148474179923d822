// What the host and a step on the device exchange: one tensor written before the step (stop flag, tokens of each
// microbatch), and one vector of all results of the step, read once, when it is over.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cuda/kernels/step_state.h"
#include "cuda/launch_point.h"
#include "nn/microbatch.h"
#include "pipeline/executor.h"

namespace metroplex::train {

struct Assembly;

class StepVector {
 public:
  StepVector() = default;
  StepVector(const cuda::Target& target, int64_t num_terms, int64_t microbatches);

  // [k] double: StepSums, a sum of each loss term, StepVerdict, this rank's loss of each microbatch.
  const at::Tensor& tensor() const { return tensor_; }
  // Its parts: what is added up over the world, what the step decides, the losses.
  at::Tensor summed() const;
  at::Tensor judged() const;
  at::Tensor own() const;
  cuda::kernels::StepSums* sums() const;
  double* terms() const;
  cuda::kernels::StepVerdict* verdict() const;
  double* losses() const;
  int64_t num_terms() const { return num_terms_; }
  int64_t microbatches() const { return microbatches_; }
  // A copy whose pointers the host may read. The host waits: once a step.
  StepVector on_host(const cuda::Target& target) const;

 private:
  at::Tensor tensor_;
  int64_t num_terms_ = 0, microbatches_ = 0;
};

// Writes Assembly::step_inputs [1 + 2 microbatches] double: whether this rank is asked to stop, of each microbatch
// the tokens that count, of the whole sequence, and whether this rank counts them. Makes room for
// Assembly::loss_factors, ahead of a capture.
void write_step_inputs(Assembly& assembly, const std::vector<nn::Microbatch>& batches, bool stop);

// Losses, tokens and loss terms of a run of the executor, summed over the microbatches of this rank and over the
// world: all results of a step but the verdict. Collective.
StepVector summed_losses(Assembly& assembly, const pipeline::PipelineOutput& output, int64_t microbatches);

}  // namespace metroplex::train
