#include "optim/step_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "base/error.h"
#include "device/launch_point.h"

namespace metroplex::optim {
namespace {

constexpr int64_t kValues = sizeof(kernels::StepValues) / sizeof(double);

template <class Struct>
int64_t field_index(double Struct::*name) {
  const Struct numbers;
  return &(numbers.*name) - reinterpret_cast<const double*>(&numbers);
}

}  // namespace

StepState::StepState(const device::Target& target, size_t num_groups, const kernels::StepValues& start)
    : target_(target),
      tensor_(at::zeros({kValues + static_cast<int64_t>(num_groups) * kernels::kRatesOfGroup},
                        at::TensorOptions().dtype(at::kDouble).device(target.memory()))) {
  write(start);
}

kernels::StepValues* StepState::values() const {
  return static_cast<kernels::StepValues*>(tensor_.mutable_data_ptr());
}
kernels::GroupRates* StepState::rates() const { return reinterpret_cast<kernels::GroupRates*>(values() + 1); }

at::Tensor StepState::value(double kernels::StepValues::*name) const { return tensor_.select(0, field_index(name)); }
at::Tensor StepState::rate(double kernels::GroupRates::*name, size_t group) const {
  return tensor_.select(0, kValues + static_cast<int64_t>(group) * kernels::kRatesOfGroup + field_index(name));
}

void StepState::copy_if(bool updates, const at::Tensor& from, const at::Tensor& to) const {
  MPX_ASSERT(from.nbytes() == to.nbytes() && from.scalar_type() == to.scalar_type() && from.is_contiguous() &&
                 to.is_contiguous(),
             "an update of ", from.numel(), " elements of a tensor of ", to.numel());
  device::launch(target_, {"copy_if_updates", {&tensor_, &from, &to}, {&to}, {{"updates", updates}}},
                 kernels::copy_if_updates, kernels::copy_if_updates_cuda,
                 static_cast<const kernels::StepValues*>(values()), updates, from.const_data_ptr(),
                 to.mutable_data_ptr(), static_cast<int64_t>(to.nbytes()));
}

kernels::StepValues StepState::read() const {
  const at::Tensor host = device::read_on_host(target_, tensor_.narrow(0, 0, kValues));
  kernels::StepValues values;
  std::memcpy(&values, host.const_data_ptr(), sizeof(values));
  return values;
}

void StepState::write(const kernels::StepValues& values) const {
  const at::Tensor host = at::empty({kValues}, at::kDouble);
  std::memcpy(host.mutable_data_ptr(), &values, sizeof(values));
  device::write_from_host(target_, tensor_.narrow(0, 0, kValues), host);
}

StepState StepState::on_host() const {
  if (target_.meta || !target_.gpu()) return *this;
  StepState copy = *this;
  copy.tensor_ = device::read_on_host(target_, tensor_);
  copy.target_.device = at::kCPU;
  return copy;
}

}  // namespace metroplex::optim
