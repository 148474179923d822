// The loss scale over steps with finite or non-finite gradients, as the kernel of the step decision updates it.
#pragma once

#include <limits>

#include "kernels/step_state.h"

namespace metroplex::test {

struct ScaleHistory {
  kernels::ScaleRule rule;
  kernels::StepValues values;
  kernels::StepVerdict verdict;

  void step(bool found_inf) {
    kernels::StepRules rules;
    rules.scale = rule;
    rules.skip_threshold = std::numeric_limits<double>::infinity();
    rules.rows = 1;
    const kernels::StepSums sums;
    const double table[] = {values.steps, 0.1}, numbers[] = {4.0, found_inf ? 1.0 : 0.0, 0.0};
    kernels::judge_step(rules, {&values, nullptr, table, &sums, numbers, &verdict});
  }
};

}  // namespace metroplex::test
