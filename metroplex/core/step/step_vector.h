// Data exchanged between the host and a step on the device. One tensor is written before the step (stop flag, tokens
// per microbatch). One vector holds all results and is read once, after the step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/step_state.h"
#include "device/launch_point.h"
#include "nn/microbatch.h"
#include "pipeline/executor.h"

namespace metroplex::step {

struct Assembly;

class StepVector {
 public:
  StepVector() = default;
  StepVector(const device::Target& target, int64_t num_terms, int64_t microbatches);

  // [k] double: StepSums, the sum of each loss term, StepVerdict, and this rank's loss per microbatch.
  const at::Tensor& tensor() const { return tensor_; }
  // Views of it: sums over the world, the step decision, this rank's losses.
  at::Tensor summed() const;
  at::Tensor decision_tensor() const;
  at::Tensor own() const;
  kernels::StepSums* sums() const;
  double* terms() const;
  kernels::StepVerdict* decision() const;
  double* losses() const;
  int64_t num_terms() const { return num_terms_; }
  int64_t microbatches() const { return microbatches_; }
  // Returns a copy whose pointers the host may read. Synchronizes; called once per step.
  StepVector on_host(const device::Target& target) const;

 private:
  at::Tensor tensor_;
  int64_t num_terms_ = 0, microbatches_ = 0;
};

// Writes Assembly::step_inputs [1 + 2 microbatches] double. It holds the stop flag, then per microbatch the counted
// tokens of the whole sequence, then per microbatch whether this rank counts them. Also allocates
// Assembly::loss_factors, so that a capture does not.
void write_step_inputs(Assembly& assembly, const std::vector<nn::Microbatch>& batches, bool stop);

// Losses, tokens and loss terms of an executor run, summed over this rank's microbatches and over the world. Contains
// all results of a step except the decision. Collective.
StepVector reduce_losses(Assembly& assembly, const pipeline::PipelineOutput& output, int64_t microbatches);

}  // namespace metroplex::step
