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
#include "step/loss_terms.h"
#include "step/process_context.h"

namespace metroplex::step {

// Tensors at fixed addresses that host, layers and kernels of a step share.
struct StepBuffers {
  LossTermNames loss_terms;  // same on all ranks; set in the first step
  at::Tensor inputs;         // [1 + 2 microbatches] double; the host writes it before the step (write_step_inputs)
  at::Tensor loss_factors;   // [microbatches] double; scales the summed loss of each microbatch
  at::Tensor flags;          // [kernels::kStepFlags] int32; set by layers, read by judge_step
};

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

// Writes StepBuffers::inputs: the stop flag, then per microbatch the counted tokens of the whole sequence, then per
// microbatch whether this rank counts them. Also allocates StepBuffers::loss_factors, so that a capture does not.
void write_step_inputs(const ProcessContext& process, StepBuffers& step_buffers,
                       const std::vector<nn::Microbatch>& batches, bool stop);

// Losses, tokens and loss terms of an executor run, summed over this rank's microbatches and over the world. Contains
// all results of a step except the decision. Collective.
StepVector reduce_losses(const ProcessContext& process, StepBuffers& step_buffers,
                         const pipeline::PipelineOutput& output, int64_t microbatches);

}  // namespace metroplex::step
