#include "step/step_errors.h"

#include "step/assemble.h"

namespace metroplex::step {

kernels::StepRules make_step_rules(const ProcessContext& process, const Optimization& optimization) {
  const config::Precision& precision = process.config.precision;
  kernels::StepRules rules;
  if (optimization.scaler) rules.scale = optimization.scaler->rule();
  rules.per_token = process.config.train.calculate_per_token_loss;
  rules.ranks = process.groups().dp_cp.size();
  rules.holds_bad_losses = process.config.train.check_for_nan_in_loss && !optimization.scaler;
  rules.holds_bad_gradients = precision.check_for_nan_in_grad && !optimization.scaler;
  rules.max_norm = process.config.optim.clip_grad;
  rules.skip_threshold = precision.grad_norm_skip_threshold;
  rules.groups = static_cast<int64_t>(optimization.param_groups->factors().size());
  rules.rows = optim::RateTable::kRows;
  return rules;
}

}  // namespace metroplex::step
