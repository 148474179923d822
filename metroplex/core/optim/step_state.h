// The step decision (kernels/step_state.h) on the parameters' device: whether to update, rates, gradient factor,
// loss scale. The update reads it on the device, so a step needs no host decision. The host reads the outcome
// afterwards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/step_state.h"
#include "device/launch_point.h"

namespace metroplex::optim {

class StepState {
 public:
  StepState() = default;  // without values
  StepState(const device::Target& target, size_t num_groups, const kernels::StepValues& start = {});

  // [k] double at a fixed address: a StepValues, then the GroupRates of every group.
  const at::Tensor& tensor() const { return tensor_; }
  // For kernels on the state's device.
  kernels::StepValues* values() const;
  kernels::GroupRates* rates() const;
  kernels::StepPlace place(size_t group) const { return {values(), rates() + group}; }
  // 0-dim views, for libtorch operators.
  at::Tensor value(double kernels::StepValues::*name) const;
  at::Tensor rate(double kernels::GroupRates::*name, size_t group) const;

  // take: x = next if the step updates. restore_if_skipped: x = before if it does not. Both tensors must be
  // contiguous with equal size and dtype.
  void take(const at::Tensor& x, const at::Tensor& next) const { copy_if(true, next, x); }
  void restore_if_skipped(const at::Tensor& x, const at::Tensor& before) const { copy_if(false, before, x); }

  // Waits for the device.
  kernels::StepValues read() const;
  void write(const kernels::StepValues& values) const;
  // Returns the state for CPU kernels: on a GPU a host copy, for which the host waits; else the state itself.
  StepState on_host() const;

 private:
  void copy_if(bool updates, const at::Tensor& from, const at::Tensor& to) const;

  device::Target target_;
  at::Tensor tensor_;
};

}  // namespace metroplex::optim
