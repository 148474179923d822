// A step decision with values set by a test.
#pragma once

#include <vector>

#include "config/optim.h"
#include "optim/param_groups.h"
#include "optim/step_state.h"

namespace metroplex::test {

// `number` counts updates from 1.
inline optim::StepState make_step_state(const config::Optim& config, const std::vector<optim::GroupRates>& rates,
                                        double grad_factor, int64_t number, bool updates = true) {
  optim::StepState state({}, rates.size());
  for (size_t g = 0; g < rates.size(); ++g) {
    state.rates()[g] =
        kernels::group_rates(rates[g].lr, rates[g].weight_decay, config.adam_beta1, config.adam_beta2, number);
  }
  kernels::StepValues& values = *state.values();
  values.number = static_cast<double>(number);
  values.grad_factor = grad_factor;
  values.updates = updates ? 1 : 0;
  return state;
}

}  // namespace metroplex::test
