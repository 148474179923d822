#include "config/validate.h"

#include <algorithm>

#include "base/error.h"
#include "config/fields.h"
#include "config/rules.h"
#include "config/rules_transformer.h"

namespace metroplex::config {

int64_t data_parallel_size(const Parallel& parallel, int64_t world_size) {
  return world_size / (parallel.tp() * parallel.pp() * parallel.cp());
}

static int64_t dp_or_zero(const Parallel& parallel, int64_t world_size) {
  return world_size % (parallel.tp() * parallel.pp() * parallel.cp()) == 0 ? data_parallel_size(parallel, world_size)
                                                                           : 0;
}

static std::vector<std::string> default_texts() {
  Config defaults;
  std::vector<std::string> texts;
  for (const Field& field : fields(defaults)) texts.push_back(to_text(field));
  return texts;
}

static std::vector<ChangedKey> changed_keys(Config config) {
  static const std::vector<std::string> kDefaults = default_texts();  // a search checks thousands of configurations
  const std::vector<Field> list = fields(config);
  std::vector<ChangedKey> changed;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string value = to_text(list[i]);
    if (value != kDefaults[i]) changed.push_back({list[i].key(), list[i].name, value});
  }
  return changed;
}

Rules::Rules(const Config& settings, int64_t world, Use u)
    : config(settings),
      world_size(world),
      use(u),
      dp(dp_or_zero(settings.parallel, world)),
      changed(changed_keys(settings)) {}

void refuse_without(Rules& rules, const char* switched, bool (*belongs)(std::string_view name)) {
  for (const ChangedKey& one : rules.changed) {
    if (!belongs(one.name)) continue;
    rules.require_effect(false, one.key.c_str(), one.value, base::concat("has no effect without ", switched),
                         base::concat("leave it out, or turn ", switched, " on"));
  }
}

static std::string fix_for_limit(const Field& field) {
  if (!field.limits.choices.empty()) {
    const std::string nearest = base::nearest_name(to_text(field), field.limits.choices);
    return nearest.empty() ? "choose one of them" : "did you mean " + nearest + "?";
  }
  const bool number = std::holds_alternative<int64_t*>(field.member) || std::holds_alternative<double*>(field.member);
  return number ? "choose a value inside" : "choose another name or path";
}

// Returns the violations of each key's own limits. Resets those keys to their defaults in `config`, so that later
// rules see valid numbers.
static std::vector<Violation> check_limits(Config& config) {
  const std::vector<Field> list = fields(config);
  std::vector<Violation> found;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string rule = broken_limit(list[i]);
    if (rule.empty()) continue;
    const std::string value = to_text(list[i]);
    found.push_back({list[i].key(), value.empty() ? "(empty)" : value, rule, fix_for_limit(list[i])});
    Config defaults;
    copy_value(list[i], fields(defaults)[i]);
  }
  return found;
}

// True if the violation repeats, or compares with, a key that already violates its own limits.
static bool follows_from(const Violation& violation, const std::vector<Violation>& limits) {
  return std::any_of(limits.begin(), limits.end(), [&](const Violation& limit) {
    return violation.key == limit.key || violation.rule.find(limit.key) != std::string::npos;
  });
}

std::vector<Violation> violations(const Config& config, int64_t world_size, Use use) {
  if (world_size < 1) {
    return {{"run.nproc", std::to_string(world_size), "a run needs at least 1 rank", "start 1 rank or more"}};
  }
  Config sane = config;
  std::vector<Violation> found = check_limits(sane);
  Rules rules(sane, world_size, use);
  rules.list = transformer_violations(transformer_settings(sane));
  for (const auto check : {check_ranks,
                           check_device,
                           check_context_parallel,
                           check_model,
                           check_attention,
                           check_linear_attention,
                           check_hybrid_layers,
                           check_peft,
                           check_experts,
                           check_pipeline,
                           check_batch,
                           check_lengths,
                           check_optim,
                           check_optimizer_state,
                           check_precision,
                           check_low_precision,
                           check_sharding,
                           check_gradient_sums,
                           check_recompute,
                           check_offload,
                           check_loss_chunks,
                           check_data,
                           check_checkpoint,
                           check_paths,
                           check_loop,
                           check_cuda_graphs}) {
    check(rules);
  }
  const std::vector<Violation> limits = found;
  for (Violation& violation : rules.list) {
    if (!follows_from(violation, limits)) found.push_back(std::move(violation));
  }
  return found;
}

std::vector<Violation> without_effect(const Config& config) {
  const Parallel& parallel = config.parallel;
  const int64_t ranks =
      std::max<int64_t>(parallel.tp(), 1) * std::max<int64_t>(parallel.pp(), 1) * std::max<int64_t>(parallel.cp(), 1);
  const std::vector<Violation> all = violations(config, ranks);
  std::vector<Violation> found;
  for (const Violation& violation : all) {
    const bool only_that = std::all_of(all.begin(), all.end(), [&](const Violation& other) {
      return other.without_effect || other.key != violation.key;
    });
    if (violation.without_effect && only_that) found.push_back(violation);
  }
  return found;
}

std::string message(const std::vector<Violation>& list) {
  std::string text = list.size() == 1 ? "this configuration cannot run:"
                                      : base::concat("this configuration cannot run, for ", list.size(), " reasons:");
  for (const Violation& v : list) text += "\n  " + v.key + " = " + v.value + ": " + v.rule + "; " + v.fix;
  return text;
}

void check(const Config& config, int64_t world_size, Use use) {
  const std::vector<Violation> list = violations(config, world_size, use);
  if (!list.empty()) base::throw_error("config", message(list));
}

}  // namespace metroplex::config
