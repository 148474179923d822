// Rules about batch sizes, lengths and schedules of a run.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "config/rules.h"

namespace metroplex::config {

using base::concat;

// "768", "1.5K", "250B": a number with an optional K, M, B or T. Nothing unless it is finite and at least 0.
static std::optional<double> magnitude(std::string text) {
  static const std::map<char, double> kUnits = {{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}};
  double unit = 1, value = 0;
  if (!text.empty()) {
    const char last = static_cast<char>(std::toupper(static_cast<unsigned char>(text.back())));
    if (const auto found = kUnits.find(last); found != kUnits.end()) {
      unit = found->second;
      text.pop_back();
    }
  }
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || !std::isfinite(value) || value < 0)
    return std::nullopt;
  return value * unit;
}

std::optional<std::vector<int64_t>> step_batch_sizes(const std::string& text, std::string& problem) {
  std::string spaced = text;
  std::replace(spaced.begin(), spaced.end(), ',', ' ');
  std::istringstream stream(spaced);
  std::map<double, int64_t> steps;
  for (std::string entry; stream >> entry;) {
    const size_t colon = entry.find(':');
    const auto from = colon == std::string::npos ? std::nullopt : magnitude(entry.substr(0, colon));
    const auto size = colon == std::string::npos ? std::nullopt : magnitude(entry.substr(colon + 1));
    if (!from || !size || *size < 1 || *size > 1e9) {
      problem = "'" + entry + "' is not THRESHOLD:BATCH_SIZE";
      return std::nullopt;
    }
    if (!steps.emplace(*from, static_cast<int64_t>(*size)).second) {
      problem = "two steps begin at the same threshold, '" + entry + "'";
      return std::nullopt;
    }
  }
  if (steps.empty() || steps.begin()->first != 0) {
    problem = "the first step must begin at 0";
    return std::nullopt;
  }
  std::vector<int64_t> sizes;
  for (const auto& [from, size] : steps) sizes.push_back(size);
  return sizes;
}

std::optional<std::vector<int64_t>> rampup_batch_sizes(const std::string& text, int64_t global_batch_size,
                                                       std::string& problem) {
  std::istringstream stream(text);
  int64_t start = 0, increment = 0, samples = 0;
  std::string rest;
  if (!(stream >> start >> increment >> samples) || stream >> rest || start < 1 || increment < 1 || samples < 0) {
    problem = "expected three whole numbers: START INCREMENT SAMPLES";
    return std::nullopt;
  }
  if (start > global_batch_size || (global_batch_size - start) % increment != 0) {
    problem = concat("train.global_batch_size = ", global_batch_size, " is not reached from ", start, " in steps of ",
                     increment);
    return std::nullopt;
  }
  if ((global_batch_size - start) / increment > 1000000) {
    problem = "more than a million steps";
    return std::nullopt;
  }
  std::vector<int64_t> sizes;
  for (int64_t size = start; size <= global_batch_size; size += increment) sizes.push_back(size);
  return sizes;
}

// Microbatches of one batch, against what the interleaved schedule can deal out.
static void check_interleaved(Rules& rules, const char* key, int64_t microbatches) {
  const Parallel& p = rules.config.parallel;
  if (effective_vpp(p) == 1 || effective_schedule(p) != "interleaved") return;
  const int64_t group = p.microbatch_group_size_per_vp_stage == 0 ? p.pp() : p.microbatch_group_size_per_vp_stage;
  const bool deals = microbatches >= group && (microbatches % group == 0 || microbatches % group >= p.pp());
  rules.require(deals, key, concat(microbatches, " microbatches"),
                concat("the interleaved schedule deals them out in groups of ", group,
                       " (parallel.microbatch_group_size_per_vp_stage), the last of which may be short but not under "
                       "parallel.pipeline_model_parallel_size = ",
                       p.pp()),
                concat("make train.global_batch_size a multiple of ", group, " * micro_batch_size * dp"));
}

static void check_batch_size(Rules& rules, const char* key, int64_t size) {
  const Train& t = rules.config.train;
  if (rules.dp == 0) return;
  const int64_t unit = t.micro_batch_size * rules.dp;
  const bool divides = size % unit == 0, rounds = t.decrease_batch_size_if_needed && size >= unit;
  rules.require(divides || rounds, key, size,
                concat("must be a multiple of train.micro_batch_size * dp = ", t.micro_batch_size, " * ", rules.dp,
                       " = ", unit),
                t.decrease_batch_size_if_needed ? "choose a larger batch"
                                                : "choose a multiple, or set train.decrease_batch_size_if_needed");
  if (divides || rounds) check_interleaved(rules, key, size / unit);
}

void check_batch(Rules& rules) {
  const Train& t = rules.config.train;
  static constexpr const char* kGlobal = "train.global_batch_size";
  static constexpr const char* kStep = "train.step_batch_size_schedule";
  static constexpr const char* kRampup = "train.rampup_batch_size";
  const bool step = !t.step_batch_size_schedule.empty(), rampup = !t.rampup_batch_size.empty();
  rules.require(!step || t.global_batch_size == 0, kGlobal, t.global_batch_size,
                "is given by train.step_batch_size_schedule", "leave it 0 or drop the schedule");
  rules.require(!step || !rampup, kRampup, t.rampup_batch_size, "excludes train.step_batch_size_schedule",
                "keep one of the two");
  rules.require(!rampup || t.global_batch_size > 0, kGlobal, t.global_batch_size,
                "must be given with train.rampup_batch_size", "say where the ramp ends");
  rules.require(!rampup || t.train_samples > 0, "train.train_iters", t.train_iters,
                "a ramp-up (train.rampup_batch_size) needs a run measured in samples",
                "give train.train_samples instead");
  std::string problem;
  std::optional<std::vector<int64_t>> sizes;
  if (step) {
    sizes = step_batch_sizes(t.step_batch_size_schedule, problem);
    rules.require(sizes.has_value(), kStep, t.step_batch_size_schedule, "cannot be read: " + problem,
                  "write it like \"0:768 250B:1536\"");
  } else if (rampup && t.global_batch_size > 0) {
    sizes = rampup_batch_sizes(t.rampup_batch_size, t.global_batch_size, problem);
    rules.require(sizes.has_value(), kRampup, t.rampup_batch_size, "cannot be read: " + problem,
                  "write it like \"16 16 300000\"");
  } else if (rules.dp > 0) {
    sizes = {{t.global_batch_size == 0 ? t.micro_batch_size * rules.dp : t.global_batch_size}};
  }
  const size_t before = rules.list.size();
  for (const int64_t size : sizes.value_or(std::vector<int64_t>{})) {
    if (rules.list.size() > before) break;  // one bad step of a schedule tells enough
    check_batch_size(rules, step ? kStep : rampup ? kRampup : kGlobal, size);
  }
}

void check_lengths(Rules& rules) {
  const Train& t = rules.config.train;
  const Optim& o = rules.config.optim;
  rules.require(
      (t.train_iters > 0) != (t.train_samples > 0), "train.train_iters", t.train_iters,
      concat("exactly one of train.train_iters and train.train_samples (", t.train_samples, ") must be given"),
      "say how long the run is, in one of them");
  const bool by_samples = t.train_samples > 0 && t.train_iters == 0;
  const std::pair<const char*, int64_t> wrong_unit[] = {
      {"optim.lr_decay_", by_samples ? o.lr_decay_iters : o.lr_decay_samples},
      {"optim.lr_warmup_", by_samples ? o.lr_warmup_iters : o.lr_warmup_samples},
      {"optim.lr_wsd_decay_", by_samples ? o.lr_wsd_decay_iters : o.lr_wsd_decay_samples}};
  for (const auto& [prefix, value] : wrong_unit) {
    const std::string wrong = by_samples ? "iters" : "samples", right = by_samples ? "samples" : "iters";
    rules.require(value == 0 || (t.train_iters > 0) == (t.train_samples > 0), (prefix + wrong).c_str(), value,
                  "the run is measured in " + right + " (train.train_" + right + ")", "use " + (prefix + right));
  }
  const bool both_warmups = o.lr_warmup_fraction > 0 && (o.lr_warmup_iters > 0 || o.lr_warmup_samples > 0);
  rules.require(!both_warmups, "optim.lr_warmup_fraction", o.lr_warmup_fraction,
                "excludes optim.lr_warmup_iters and optim.lr_warmup_samples", "keep one of them");
}

static void check_schedule_parts(Rules& rules) {
  const Optim& o = rules.config.optim;
  const Train& t = rules.config.train;
  const bool by_samples = t.train_samples > 0;
  const int64_t length = by_samples ? t.train_samples : t.train_iters;
  const int64_t given = by_samples ? o.lr_decay_samples : o.lr_decay_iters;
  const int64_t decay = given == 0 ? length : given;
  const int64_t warmup = by_samples ? o.lr_warmup_samples : o.lr_warmup_iters;
  const int64_t last = by_samples ? o.lr_wsd_decay_samples : o.lr_wsd_decay_iters;
  const char* warmup_key = by_samples ? "optim.lr_warmup_samples" : "optim.lr_warmup_iters";
  const char* last_key = by_samples ? "optim.lr_wsd_decay_samples" : "optim.lr_wsd_decay_iters";
  rules.require(warmup == 0 || decay == 0 || warmup < decay, warmup_key, warmup,
                concat("must be shorter than the decay of ", decay), "shorten the warm-up or lengthen the decay");
  const bool wsd = o.lr_decay_style == "WSD";
  rules.require(!wsd || last > 0, last_key, last, "must be given with optim.lr_decay_style = WSD",
                "say how long the last part is");
  rules.require(!wsd || decay == 0 || last <= decay, last_key, last, concat("must not exceed the decay of ", decay),
                "shorten it");
  rules.require(wsd || last == 0, last_key, last, "belongs to optim.lr_decay_style = WSD", "leave it 0 or use WSD");
}

void check_optim(Rules& rules) {
  const Optim& o = rules.config.optim;
  rules.require(o.min_lr <= o.lr, "optim.min_lr", o.min_lr, "must not exceed optim.lr = " + number_text(o.lr),
                "lower it");
  rules.require(o.lr_warmup_init <= o.lr, "optim.lr_warmup_init", o.lr_warmup_init,
                "must not exceed optim.lr = " + number_text(o.lr), "lower it");
  check_schedule_parts(rules);
  const double unset = -1;
  const std::pair<const char*, double> ends[] = {{"optim.start_weight_decay", o.start_weight_decay},
                                                 {"optim.end_weight_decay", o.end_weight_decay}};
  const bool constant = o.weight_decay_incr_style == "constant";
  for (const auto& [key, value] : ends) {
    rules.require(!constant || value == unset || value == o.weight_decay, key, value,
                  "has no meaning with optim.weight_decay_incr_style = constant",
                  "use linear or cosine, or leave it -1");
    rules.require(value >= 0 || value == unset, key, value, "must be at least 0, or -1 for optim.weight_decay",
                  "choose 0 or more");
    rules.require(constant || value != unset, key, value,
                  "must be given with optim.weight_decay_incr_style = " + o.weight_decay_incr_style,
                  "choose 0 or more");
  }
  rules.require(
      constant || o.start_weight_decay < 0 || o.end_weight_decay < 0 || o.start_weight_decay <= o.end_weight_decay,
      "optim.end_weight_decay", o.end_weight_decay,
      "must not be below optim.start_weight_decay = " + number_text(o.start_weight_decay), "raise it");
  rules.require(!o.override_opt_param_scheduler || !o.use_checkpoint_opt_param_scheduler,
                "optim.override_opt_param_scheduler", "true", "excludes optim.use_checkpoint_opt_param_scheduler",
                "keep one of the two");
}

void check_loop(Rules& rules) {
  const Train& t = rules.config.train;
  rules.require(t.eval_interval == 0 || t.eval_iters > 0, "train.eval_iters", t.eval_iters,
                concat("must be at least 1 with train.eval_interval = ", t.eval_interval),
                "say how many iterations an evaluation has");
}

}  // namespace metroplex::config
