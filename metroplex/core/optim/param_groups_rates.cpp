#include "optim/param_groups.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "device/launch_point.h"
#include "kernels/step_state.h"

namespace metroplex::optim {

RateTable::RateTable(const device::Target& target, size_t num_groups, double beta1, double beta2)
    : target_(target),
      tensor_(at::zeros({1 + kRows * kernels::rate_row(static_cast<int64_t>(num_groups))},
                        at::TensorOptions().dtype(at::kDouble).device(target.memory()))),
      beta1_(beta1),
      beta2_(beta2) {}

void RateTable::cover(const LrSchedule& schedule, const ParamGroups& groups, const Position& next) {
  const int64_t row = first_ ? next.steps - first_->steps : -1;
  if (row >= 0 && row < kRows && next.batch == first_->batch && next.samples == first_->samples + row * next.batch)
    return;
  first_ = next;
  const at::Tensor host = at::empty(tensor_.sizes(), at::kDouble);
  double* to = host.mutable_data_ptr<double>();
  *to++ = static_cast<double>(next.steps);
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t samples = next.samples + i * next.batch;
    *to++ = schedule.lr(samples);
    for (const GroupRates& rates : groups.rates(schedule, samples)) {
      const kernels::GroupRates all =
          kernels::group_rates(rates.lr, rates.weight_decay, beta1_, beta2_, next.steps + i + 1);
      std::memcpy(to, &all, sizeof(all));
      to += kernels::kRatesOfGroup;
    }
  }
  device::write_from_host(target_, tensor_, host);
}

}  // namespace metroplex::optim
