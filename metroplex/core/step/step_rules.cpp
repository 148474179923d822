#include "step/step_errors.h"

#include "step/assemble.h"

namespace metroplex::step {

kernels::StepRules rules_of(const Assembly& a) {
  const config::Precision& p = a.config.precision;
  kernels::StepRules rules;
  if (a.scaler) rules.scale = a.scaler->rule();
  rules.per_token = a.config.train.calculate_per_token_loss;
  rules.ranks = a.groups().dp_cp.size();
  rules.holds_bad_losses = a.config.train.check_for_nan_in_loss && !a.scaler;
  rules.holds_bad_gradients = p.check_for_nan_in_grad && !a.scaler;
  rules.max_norm = a.config.optim.clip_grad;
  rules.skip_threshold = p.grad_norm_skip_threshold;
  rules.groups = static_cast<int64_t>(a.param_groups->factors().size());
  rules.rows = optim::RateTable::kRows;
  return rules;
}

}  // namespace metroplex::step
