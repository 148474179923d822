#include "config/optim.h"

#include <charconv>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "config/name_patterns.h"

namespace metroplex::config {

bool ParamGroupRule::match(const std::string& name) const { return matches(pattern, name); }

static std::optional<double> factor(const std::string& text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = !text.empty() && error == std::errc() && stop == text.data() + text.size();
  return whole && std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

std::optional<ParamGroupRule> read_param_group(const std::string& text, std::string& problem) {
  std::istringstream words(text);
  ParamGroupRule rule;
  std::optional<double> lr_mult;
  words >> rule.pattern;
  if (rule.pattern.empty() || rule.pattern.find('=') != std::string::npos) {
    problem = "it must begin with a pattern of parameter names";
    return std::nullopt;
  }
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    std::optional<double>* member = key == "lr_mult"    ? &lr_mult
                                    : key == "wd_mult"  ? &rule.wd_mult
                                    : key == "start_wd" ? &rule.start_wd
                                    : key == "end_wd"   ? &rule.end_wd
                                                        : nullptr;
    const auto value = equals == std::string::npos ? std::nullopt : factor(word.substr(equals + 1));
    if (member == nullptr || !value || *member) {
      problem = member != nullptr && *member
                    ? "'" + key + "' is given twice"
                    : "'" + word +
                          "' is neither lr_mult=X, wd_mult=X, start_wd=X nor end_wd=X with a "
                          "number of at least 0";
      return std::nullopt;
    }
    *member = value;
  }
  if (!lr_mult && !rule.wd_mult && !rule.start_wd && !rule.end_wd) {
    problem = "it changes nothing";
    return std::nullopt;
  }
  rule.lr_mult = lr_mult.value_or(1.0);
  return rule;
}

std::vector<ParamGroupRule> param_group_rules(const Optim& optim) {
  std::vector<ParamGroupRule> rules;
  for (const std::string& text : optim.param_groups) {
    std::string problem;
    const auto rule = read_param_group(text, problem);
    MPX_CHECK(rule.has_value(), "config", "optim.param_groups: '", text, "': ", problem,
              "; write it like \"*.bias lr_mult=2 wd_mult=0\"");
    rules.push_back(*rule);
  }
  return rules;
}

const ParamGroupRule* find_param_group(const std::vector<ParamGroupRule>& rules, const std::string& name) {
  for (const ParamGroupRule& rule : rules) {
    if (rule.match(name)) return &rule;
  }
  return nullptr;
}

}  // namespace metroplex::config
