#include "step/step_errors.h"

#include "step/assemble.h"

namespace metroplex::step {

kernels::StepRules make_step_rules(const Assembly& assembly) {
  const config::Precision& precision = assembly.config.precision;
  kernels::StepRules rules;
  if (assembly.scaler) rules.scale = assembly.scaler->rule();
  rules.per_token = assembly.config.train.calculate_per_token_loss;
  rules.ranks = assembly.groups().dp_cp.size();
  rules.holds_bad_losses = assembly.config.train.check_for_nan_in_loss && !assembly.scaler;
  rules.holds_bad_gradients = precision.check_for_nan_in_grad && !assembly.scaler;
  rules.max_norm = assembly.config.optim.clip_grad;
  rules.skip_threshold = precision.grad_norm_skip_threshold;
  rules.groups = static_cast<int64_t>(assembly.param_groups->factors().size());
  rules.rows = optim::RateTable::kRows;
  return rules;
}

}  // namespace metroplex::step
