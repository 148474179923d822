// optim.param_groups: which parameters, by their global names, learn faster or slower or decay otherwise. A rule
// reads "PATTERN lr_mult=X wd_mult=Y start_wd=A end_wd=B"; the first whose pattern fits a name counts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/optim.h"

namespace metroplex::config {

struct ParamGroupRule {
  std::string pattern;              // * stands for any text, ? for any one letter; must fit the whole name
  double lr_mult = 1.0;             // times the learning rate the parameter would have
  std::optional<double> wd_mult{};  // times its weight decay, whatever the parameter is; unset: 0 or 1 by its kind
  std::optional<double> start_wd{}, end_wd{};  // unset: optim.start_weight_decay and optim.end_weight_decay

  bool match(const std::string& name) const;
};

// Nothing when `text` is not a rule; `problem` says why.
std::optional<ParamGroupRule> read_param_group(const std::string& text, std::string& problem);

// All of optim.param_groups, in order. Throws base::Error("config") for one that cannot be read.
std::vector<ParamGroupRule> param_group_rules(const Optim& optim);

// The rule that counts for this parameter, or null.
const ParamGroupRule* find_param_group(const std::vector<ParamGroupRule>& rules, const std::string& name);

}  // namespace metroplex::config
