// Rules for batch sizes, lengths and schedules.
#include "config/rules.h"

#include "config/batch_schedule.h"
#include "config/derived.h"

namespace metroplex::config {

using base::concat;

static std::vector<int64_t> list_sizes(const std::vector<BatchStep>& steps) {
  std::vector<int64_t> sizes;
  for (const BatchStep& step : steps) sizes.push_back(step.global_batch_size);
  return sizes;
}

static std::vector<int64_t> list_sizes(const BatchRampup& rampup) {
  std::vector<int64_t> sizes;
  for (int64_t size = rampup.start; size <= rampup.global_batch_size; size += rampup.increment) sizes.push_back(size);
  return sizes;
}

std::optional<std::vector<int64_t>> scheduled_batch_sizes(const Train& train, std::string& problem) {
  if (!train.step_batch_size_schedule.empty()) {
    const auto steps = read_batch_steps(train.step_batch_size_schedule, train.seq_length, problem);
    return steps ? std::optional(list_sizes(*steps)) : std::nullopt;
  }
  const auto rampup = read_batch_rampup(train.rampup_batch_size, train.global_batch_size, problem);
  return rampup ? std::optional(list_sizes(*rampup)) : std::nullopt;
}

static void check_batch_size(Rules& rules, const char* key, int64_t size) {
  const Train& train = rules.config.train;
  if (rules.dp == 0) return;
  const int64_t unit = train.micro_batch_size * rules.dp;
  const bool divides = size % unit == 0, rounds = train.decrease_batch_size_if_needed && size >= unit;
  rules.require(divides || rounds, key, size,
                concat("must be a multiple of train.micro_batch_size * dp = ", train.micro_batch_size, " * ",
                       rules.dp, " = ", unit),
                train.decrease_batch_size_if_needed
                    ? "choose a larger batch"
                    : "choose a multiple, or set train.decrease_batch_size_if_needed");
}

void check_batch(Rules& rules) {
  const Train& train = rules.config.train;
  static constexpr const char* kGlobal = "train.global_batch_size";
  static constexpr const char* kStep = "train.step_batch_size_schedule";
  static constexpr const char* kRampup = "train.rampup_batch_size";
  const bool step = !train.step_batch_size_schedule.empty(), rampup = !train.rampup_batch_size.empty();
  rules.require(!step || train.global_batch_size == 0, kGlobal, train.global_batch_size,
                "is given by train.step_batch_size_schedule", "leave it 0 or drop the schedule");
  rules.require(!step || !rampup, kRampup, train.rampup_batch_size, "excludes train.step_batch_size_schedule",
                "keep one of the two");
  rules.require(!rampup || train.global_batch_size > 0, kGlobal, train.global_batch_size,
                "must be given with train.rampup_batch_size", "set the batch size at which the ramp ends");
  rules.require(!rampup || train.train_samples > 0, "train.train_iters", train.train_iters,
                "a ramp-up (train.rampup_batch_size) needs a run measured in samples",
                "give train.train_samples instead");
  rules.require(!step || !train.decrease_batch_size_if_needed, kStep, train.step_batch_size_schedule,
                "excludes train.decrease_batch_size_if_needed", "drop one of the two");
  std::string problem;
  std::optional<std::vector<int64_t>> sizes;
  if (step || (rampup && train.global_batch_size > 0)) {
    sizes = scheduled_batch_sizes(train, problem);
    rules.require(sizes.has_value(), step ? kStep : kRampup,
                  step ? train.step_batch_size_schedule : train.rampup_batch_size, "cannot be read: " + problem,
                  step ? "write it like \"0:768 250B:1536\"" : "write it like \"16 16 300000\"");
  } else if (rules.dp > 0) {
    sizes = {{train.global_batch_size == 0 ? train.micro_batch_size * rules.dp : train.global_batch_size}};
  }
  const size_t before = rules.list.size();
  for (const int64_t size : sizes.value_or(std::vector<int64_t>{})) {
    if (rules.list.size() > before) break;  // one invalid step of a schedule is enough
    check_batch_size(rules, step ? kStep : rampup ? kRampup : kGlobal, size);
  }
  if (train.eval_global_batch_size > 0)
    check_batch_size(rules, "train.eval_global_batch_size", train.eval_global_batch_size);
}

void check_lengths(Rules& rules) {
  const Train& train = rules.config.train;
  const Optim& optim = rules.config.optim;
  rules.require(train.train_epochs > 0 || (train.train_iters > 0) != (train.train_samples > 0) ||
                    (!rules.trains() && train.train_samples == 0),
                "train.train_iters", train.train_iters,
                concat("exactly one of train.train_iters, train.train_samples (", train.train_samples,
                       ") and train.train_epochs must be given"),
                "set exactly one of them");
  rules.require(train.train_epochs == 0 || (train.train_iters == 0 && train.train_samples == 0), "train.train_epochs",
                train.train_epochs,
                concat("excludes ", key_is("train.train_iters", train.train_iters), " and ",
                       key_is("train.train_samples", train.train_samples)),
                "set both to 0, or leave train_epochs out");
  const bool by_samples = train.train_samples > 0 && train.train_iters == 0;
  const std::pair<const char*, int64_t> wrong_unit[] = {
      {"optim.lr_decay_", by_samples ? optim.lr_decay_iters : optim.lr_decay_samples},
      {"optim.lr_warmup_", by_samples ? optim.lr_warmup_iters : optim.lr_warmup_samples}};
  const std::string wrong = by_samples ? "iters" : "samples", right = by_samples ? "samples" : "iters";
  for (const auto& [prefix, value] : wrong_unit) {
    rules.require(value == 0 || (train.train_iters > 0) == (train.train_samples > 0), (prefix + wrong).c_str(), value,
                  "the run is measured in " + right + " (train.train_" + right + ")", "use " + (prefix + right));
  }
  const int64_t wrong_wsd = by_samples ? optim.lr_wsd_decay_iters : optim.lr_wsd_decay_samples;
  rules.require_effect(wrong_wsd == 0 || (train.train_iters > 0) == (train.train_samples > 0),
                       ("optim.lr_wsd_decay_" + wrong).c_str(), wrong_wsd,
                       "the run is measured in " + right + " (train.train_" + right + ")",
                       "use optim.lr_wsd_decay_" + right);
  const bool both_warmups =
      optim.lr_warmup_fraction > 0 && (optim.lr_warmup_iters > 0 || optim.lr_warmup_samples > 0);
  rules.require(!both_warmups, "optim.lr_warmup_fraction", optim.lr_warmup_fraction,
                "excludes optim.lr_warmup_iters and optim.lr_warmup_samples", "keep one of them");
}

static void check_schedule_parts(Rules& rules) {
  const Optim& optim = rules.config.optim;
  const Train& train = rules.config.train;
  const bool by_samples = train.train_samples > 0;
  const int64_t length = by_samples ? train.train_samples : train.train_iters;
  const int64_t given = by_samples ? optim.lr_decay_samples : optim.lr_decay_iters;
  const int64_t decay = given == 0 ? length : given;
  const int64_t warmup = by_samples ? optim.lr_warmup_samples : optim.lr_warmup_iters;
  const int64_t last = by_samples ? optim.lr_wsd_decay_samples : optim.lr_wsd_decay_iters;
  const char* warmup_key = by_samples ? "optim.lr_warmup_samples" : "optim.lr_warmup_iters";
  const char* last_key = by_samples ? "optim.lr_wsd_decay_samples" : "optim.lr_wsd_decay_iters";
  rules.require(warmup == 0 || decay == 0 || warmup < decay, warmup_key, warmup,
                concat("must be shorter than the decay of ", decay), "shorten the warm-up or lengthen the decay");
  const bool wsd = optim.lr_decay_style == LrDecay::WSD;
  rules.require(!wsd || last > 0, last_key, last, "must be given with optim.lr_decay_style = WSD",
                "set the length of the decay phase");
  rules.require(!wsd || decay == 0 || last <= decay, last_key, last, concat("must not exceed the decay of ", decay),
                "shorten it");
  rules.require_effect(wsd || last == 0, last_key, last, "belongs to optim.lr_decay_style = WSD",
                       "leave it 0 or use WSD");
}

static void check_decoupled_rates(Rules& rules) {
  const Optim& optim = rules.config.optim;
  const bool given = optim.decoupled_lr > 0;
  rules.require_effect(given || optim.decoupled_min_lr == 0, "optim.decoupled_min_lr", optim.decoupled_min_lr,
                       "has no meaning without optim.decoupled_lr", "give optim.decoupled_lr or leave it 0");
  rules.require(!given || optim.decoupled_min_lr <= optim.decoupled_lr, "optim.decoupled_min_lr",
                optim.decoupled_min_lr, "must not exceed optim.decoupled_lr = " + number_text(optim.decoupled_lr),
                "lower it");
  rules.require(!given || optim.lr_warmup_init <= optim.decoupled_lr, "optim.lr_warmup_init", optim.lr_warmup_init,
                "must not exceed optim.decoupled_lr = " + number_text(optim.decoupled_lr), "lower it");
}

void check_optim(Rules& rules) {
  const Optim& optim = rules.config.optim;
  rules.require(optim.min_lr <= optim.lr, "optim.min_lr", optim.min_lr,
                "must not exceed optim.lr = " + number_text(optim.lr), "lower it");
  rules.require(optim.lr_warmup_init <= optim.lr, "optim.lr_warmup_init", optim.lr_warmup_init,
                "must not exceed optim.lr = " + number_text(optim.lr), "lower it");
  check_schedule_parts(rules);
  check_decoupled_rates(rules);
  const double unset = -1;
  const std::pair<const char*, double> ends[] = {{"optim.start_weight_decay", optim.start_weight_decay},
                                                 {"optim.end_weight_decay", optim.end_weight_decay}};
  const bool constant = optim.weight_decay_incr_style == WeightDecayIncr::constant;
  for (const auto& [key, value] : ends) {
    rules.require(!constant || value == unset || value == optim.weight_decay, key, value,
                  "has no meaning with optim.weight_decay_incr_style = constant",
                  "use linear or cosine, or leave it out");
    rules.require(value >= 0 || value == unset, key, value, "must be at least 0, or -1 for optim.weight_decay",
                  "choose 0 or more");
    rules.require(constant || value != unset, key, value,
                  "must be given with optim.weight_decay_incr_style = " + optim.weight_decay_incr_style,
                  "choose 0 or more");
  }
  rules.require(constant || optim.start_weight_decay < 0 || optim.end_weight_decay < 0 ||
                    optim.start_weight_decay <= optim.end_weight_decay,
                "optim.end_weight_decay", optim.end_weight_decay,
                "must not be below optim.start_weight_decay = " + number_text(optim.start_weight_decay), "raise it");
  rules.require(!optim.override_opt_param_scheduler || !optim.use_checkpoint_opt_param_scheduler,
                "optim.override_opt_param_scheduler", "true", "excludes optim.use_checkpoint_opt_param_scheduler",
                "keep one of the two");
}

void check_loop(Rules& rules) {
  const Train& train = rules.config.train;
  // Evaluation-only runs have a separate message for this.
  rules.require(
      train.eval_interval == 0 || train.eval_iters > 0 || train.full_validation || rules.use != Use::training,
      "train.eval_iters", train.eval_iters,
      concat("must be at least 1 with train.eval_interval = ", train.eval_interval),
      "set the number of iterations of an evaluation");
  rules.require(!train.skip_train || train.eval_iters > 0 || train.full_validation, "train.eval_iters",
                train.eval_iters, "must be at least 1 with train.skip_train = true",
                "raise it, or set train.full_validation = true");
  rules.require(train.trace_file.empty() || train.trace_step_end > train.trace_step_start, "train.trace_step_end",
                train.trace_step_end, concat("must exceed train.trace_step_start = ", train.trace_step_start),
                "raise it");
}

}  // namespace metroplex::config
