// One step decision, for the kernels of the CPU and of a GPU.
#pragma once

#include <limits>
#include <vector>

#include "kernels/step_state.h"

namespace metroplex::kernels::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity(),
                        kNan = std::numeric_limits<double>::quiet_NaN();

// The default gradients have a norm of 3.
struct Case {
  StepRules rules;
  StepValues values;
  StepSums sums;
  double numbers[3] = {9, 0, 5};
  StepVerdict verdict;
  GroupRates rates[2];
  std::vector<double> table;

  Case() {
    rules.skip_threshold = kInf;
    rules.groups = 2;
    rules.rows = 4;
    values.steps = 6;
    table.push_back(5);
    for (int64_t i = 0; i < rules.rows * rate_row(2); ++i) table.push_back(0.25 * static_cast<double>(i));
  }
  const StepVerdict& judged() {
    judge_step(rules, {&values, rates, table.data(), &sums, numbers, &verdict});
    return verdict;
  }
};

}  // namespace metroplex::kernels::test
