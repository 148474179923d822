// The numbers that a training step decides by and leaves behind (cuda/kernels/step_state.h), where the parameters
// lie. What updates reads them there: whether anything may change, rates, gradient factor. So the host decides
// nothing while a step runs, and is told of it afterwards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cuda/kernels/step_state.h"
#include "cuda/launch_point.h"

namespace metroplex::optim {

class StepState {
 public:
  StepState() = default;  // without values
  StepState(const cuda::Target& target, size_t num_groups, const cuda::kernels::StepValues& start = {});

  // [k] double, one memory for ever: a StepValues, then the GroupRates of every group.
  const at::Tensor& tensor() const { return tensor_; }
  // For kernels on the state's device.
  cuda::kernels::StepValues* values() const;
  cuda::kernels::GroupRates* rates() const;
  cuda::kernels::StepPlace place(size_t group) const { return {values(), rates() + group}; }
  // Views without dims, for operators of libtorch.
  at::Tensor value(double cuda::kernels::StepValues::*name) const;
  at::Tensor rate(double cuda::kernels::GroupRates::*name, size_t group) const;

  // Waits for the device.
  cuda::kernels::StepValues read() const;
  void write(const cuda::kernels::StepValues& values) const;
  // The same numbers for kernels of the CPU: the state itself there, else a copy, which the host waits for. Of the
  // meta device the state itself.
  StepState on_host() const;

 private:
  cuda::Target target_;
  at::Tensor tensor_;
};

}  // namespace metroplex::optim
