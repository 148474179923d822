#include "optim/param_groups.h"

#include <cmath>

#include "config/optim.h"

namespace metroplex::optim {
namespace {

// Exact comparison in which NaN ("use the schedule's value") equals NaN.
bool is_equal(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }
bool is_equal(const GroupFactors& a, const GroupFactors& b) {
  return is_equal(a.max_lr, b.max_lr) && is_equal(a.min_lr, b.min_lr) && is_equal(a.start_wd, b.start_wd) &&
         is_equal(a.end_wd, b.end_wd) && a.lr_mult == b.lr_mult && a.wd_mult == b.wd_mult;
}

GroupFactors make_factors(const config::Optim& config, const std::vector<config::ParamGroupRule>& rules,
                          const nn::Param& param) {
  GroupFactors factors;
  using topology::Role;
  const Role role = param.placement.role;
  const bool has_weight_decay =
      param.has_weight_decay() || (config.apply_wd_to_qk_layernorm && role == Role::qk_norm);
  factors.wd_mult = has_weight_decay ? 1.0 : 0.0;
  if (config.decoupled_lr > 0 && (role == Role::embedding || role == Role::output)) {
    factors.max_lr = config.decoupled_lr;
    factors.min_lr = config.decoupled_min_lr;
  }
  if (const config::ParamGroupRule* rule = config::find_param_group(rules, param.name)) {
    factors.lr_mult = rule->lr_mult;
    if (rule->wd_mult) factors.wd_mult = *rule->wd_mult;
    if (rule->start_wd) factors.start_wd = *rule->start_wd;
    if (rule->end_wd) factors.end_wd = *rule->end_wd;
  }
  return factors;
}

}  // namespace

ParamGroups::ParamGroups(const config::Optim& config, const std::vector<nn::Param*>& params) : params_(params) {
  const std::vector<config::ParamGroupRule> rules = config::param_group_rules(config);
  for (const nn::Param* param : params) {
    const GroupFactors factors = make_factors(config, rules, *param);
    size_t group = 0;
    while (group < factors_.size() && !is_equal(factors_[group], factors)) ++group;
    if (group == factors_.size()) factors_.push_back(factors);
    group_index_[param] = group;
  }
}

std::vector<GroupRates> ParamGroups::rates(const LrSchedule& schedule, int64_t num_steps) const {
  std::vector<GroupRates> rates;
  for (const GroupFactors& factors : factors_)
    rates.push_back({schedule.lr(num_steps, factors), schedule.weight_decay(num_steps, factors)});
  return rates;
}

}  // namespace metroplex::optim
