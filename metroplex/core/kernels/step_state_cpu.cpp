#include <cmath>
#include <cstring>

#include "kernels/step_state_math.h"

#pragma GCC optimize("fp-contract=off")

namespace metroplex::kernels {

GroupRates group_rates(double lr, double weight_decay, double beta1, double beta2, int64_t number) {
  const auto n = static_cast<double>(number);
  return {lr, weight_decay, 1 - lr * weight_decay, lr / (1 - std::pow(beta1, n)),
          1 / std::sqrt(1 - std::pow(beta2, n))};
}

void loss_factors(const StepValues* values, const double* tokens, double* factors, const LossFactorShape& shape) {
  for (int64_t m = 0; m < shape.microbatches; ++m) factors[m] = loss_factor(values->loss_scale, tokens[m], shape);
}
void own_sums(const OwnLosses& own, const SumsPlace& place) { add_own(own, place); }
void copy_if_updates(const StepValues* values, bool when, const void* from, void* to, int64_t bytes) {
  if ((values->updates != 0) == when && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}
void judge_step(const StepRules& rules, const JudgePlace& place) { judge(rules, place, std::sqrt(place.numbers[0])); }

}  // namespace metroplex::kernels
