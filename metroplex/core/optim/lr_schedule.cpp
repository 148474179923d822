#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace metroplex::optim {
namespace {

using config::LrDecay;
using config::WeightDecayIncr;
using config::WsdDecay;

double cosine_coefficient(double ratio) { return 0.5 * (std::cos(M_PI * ratio) + 1.0); }

double wsd_coefficient(WsdDecay style, double ratio) {
  if (style == WsdDecay::linear) return 1.0 - ratio;
  if (style == WsdDecay::cosine) return cosine_coefficient(ratio);
  if (style == WsdDecay::exponential) return 2.0 * std::pow(0.5, ratio) - 1.0;
  return 1.0 - std::sqrt(ratio);  // minus_sqrt
}

void check_schedule(const ScheduleArgs& args) {
  MPX_CHECK(args.min_lr >= 0, "config", "optim.min_lr = ", args.min_lr, " is negative; give 0 or more");
  MPX_CHECK(args.max_lr >= args.min_lr, "config", "optim.lr = ", args.max_lr,
            " is below optim.min_lr = ", args.min_lr);
  MPX_CHECK(args.init_lr <= args.max_lr, "config", "optim.lr_warmup_init = ", args.init_lr,
            " is above optim.lr = ", args.max_lr);
  MPX_CHECK(args.lr_decay_steps > 0, "config", "the learning rate decays over ", args.lr_decay_steps,
            " samples; give at least 1");
  MPX_CHECK(args.lr_warmup_steps < static_cast<double>(args.lr_decay_steps), "config", "warm-up of ",
            args.lr_warmup_steps, " samples does not end before the decay at ", args.lr_decay_steps,
            "; shorten optim.lr_warmup_* or lengthen optim.lr_decay_*");
  if (args.lr_decay_style == LrDecay::WSD) {
    MPX_CHECK(args.wsd_decay_steps > 0, "config",
              "optim.lr_decay_style WSD needs optim.lr_wsd_decay_iters or _samples");
    MPX_CHECK(args.lr_wsd_decay_style.has_value(), "config",
              "optim.lr_wsd_decay_style is missing, which optim.lr_decay_style WSD needs; choose linear, cosine, "
              "exponential or minus_sqrt");
  }
  MPX_CHECK(args.start_wd >= 0 && args.end_wd >= args.start_wd, "config", "weight decay goes from ", args.start_wd,
            " to ", args.end_wd, "; it must start at 0 or more and may only grow");
  MPX_CHECK(args.wd_incr_style != WeightDecayIncr::constant || args.start_wd == args.end_wd, "config",
            "constant weight decay cannot go from ", args.start_wd, " to ", args.end_wd,
            "; set optim.weight_decay_incr_style to linear or cosine");
}

}  // namespace

static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

GroupFactors::GroupFactors() : max_lr(kNaN), min_lr(kNaN), start_wd(kNaN), end_wd(kNaN) {}

LrSchedule::LrSchedule(ScheduleArgs args) : args_(std::move(args)) { check_schedule(args_); }

double LrSchedule::lr(int64_t num_steps, const GroupFactors& group) const {
  const double max_lr = std::isnan(group.max_lr) ? args_.max_lr : group.max_lr;
  const double min_lr = std::isnan(group.min_lr) ? args_.min_lr : group.min_lr;
  const auto steps = static_cast<double>(num_steps);
  if (args_.lr_warmup_steps > 0 && steps <= args_.lr_warmup_steps) {
    const double done = steps / args_.lr_warmup_steps;
    return group.lr_mult * (args_.init_lr + (max_lr - args_.init_lr) * done);
  }
  return group.lr_mult * decayed_lr(num_steps, max_lr, min_lr);
}

double LrSchedule::decayed_lr(int64_t num_steps, double max_lr, double min_lr) const {
  if (args_.lr_decay_style == LrDecay::constant) return max_lr;
  if (num_steps > args_.lr_decay_steps) return min_lr;
  const double ratio = (static_cast<double>(num_steps) - args_.lr_warmup_steps) /
                       (static_cast<double>(args_.lr_decay_steps) - args_.lr_warmup_steps);
  double coefficient = 0;
  switch (static_cast<LrDecay>(args_.lr_decay_style)) {
    case LrDecay::constant:
      return max_lr;
    case LrDecay::inverse_square_root: {
      const double warmup = std::max(args_.lr_warmup_steps, 1.0);
      const double now = static_cast<double>(std::max<int64_t>(num_steps, 1));
      return std::max(min_lr, max_lr * std::sqrt(warmup) / std::sqrt(now));
    }
    case LrDecay::linear:
      coefficient = 1.0 - ratio;
      break;
    case LrDecay::cosine:
      coefficient = cosine_coefficient(ratio);
      break;
    case LrDecay::WSD: {
      const int64_t anneal_start = args_.lr_decay_steps - args_.wsd_decay_steps;
      if (num_steps <= anneal_start) return max_lr;
      coefficient = wsd_coefficient(*args_.lr_wsd_decay_style, static_cast<double>(num_steps - anneal_start) /
                                                                   static_cast<double>(args_.wsd_decay_steps));
      break;
    }
  }
  return min_lr + coefficient * (max_lr - min_lr);
}

double LrSchedule::weight_decay(int64_t num_steps, const GroupFactors& group) const {
  const double start = std::isnan(group.start_wd) ? args_.start_wd : group.start_wd;
  const double end = std::isnan(group.end_wd) ? args_.end_wd : group.end_wd;
  if (num_steps > args_.wd_incr_steps) return end * group.wd_mult;
  if (args_.wd_incr_style == WeightDecayIncr::constant) {
    MPX_CHECK(start == end, "config", "constant weight decay of a parameter group cannot go from ", start, " to ",
              end, "; set optim.weight_decay_incr_style to linear or cosine");
    return end * group.wd_mult;
  }
  const double ratio = static_cast<double>(num_steps) / static_cast<double>(args_.wd_incr_steps);
  const double coefficient =
      args_.wd_incr_style == WeightDecayIncr::linear ? ratio : 0.5 * (std::cos(M_PI * (1.0 - ratio)) + 1.0);
  return (start + coefficient * (end - start)) * group.wd_mult;
}

ScheduleArgs merge_schedules(const ScheduleArgs& own, const ScheduleArgs& saved, ScheduleSource source) {
  if (source == ScheduleSource::override_checkpoint) return own;
  if (source == ScheduleSource::must_agree) {
    std::string differences;
    const auto agree = [&](const char* key, const auto& own_value, const auto& saved_value, const char* unit = "") {
      if (own_value != saved_value)
        differences += base::concat("\n  ", key, ": ", own_value, unit, " here, ", saved_value, unit, " there");
    };
    agree("optim.lr", own.max_lr, saved.max_lr);
    agree("optim.min_lr", own.min_lr, saved.min_lr);
    agree("optim.lr_warmup_init", own.init_lr, saved.init_lr);
    agree("optim.lr_warmup_iters (or _samples, _fraction)", own.lr_warmup_steps, saved.lr_warmup_steps, " samples");
    agree("optim.lr_decay_iters (or _samples; the length of the run where neither is given)", own.lr_decay_steps,
          saved.lr_decay_steps, " samples");
    agree("optim.lr_decay_style", own.lr_decay_style, saved.lr_decay_style);
    const auto style = [](const ScheduleArgs& args) {
      return args.lr_wsd_decay_style ? args.lr_wsd_decay_style->text() : "none";
    };
    if (own.lr_decay_style == LrDecay::WSD || saved.lr_decay_style == LrDecay::WSD) {
      agree("optim.lr_wsd_decay_iters (or _samples)", own.wsd_decay_steps, saved.wsd_decay_steps, " samples");
      agree("optim.lr_wsd_decay_style", style(own), style(saved));
    }
    agree("optim.start_weight_decay (or weight_decay)", own.start_wd, saved.start_wd);
    agree("optim.end_weight_decay (or weight_decay)", own.end_wd, saved.end_wd);
    agree("train.train_iters (or _samples), over which the weight decay changes", own.wd_incr_steps,
          saved.wd_incr_steps, " samples");
    agree("optim.weight_decay_incr_style", own.wd_incr_style, saved.wd_incr_style);
    MPX_CHECK(differences.empty(), "config", "the schedules of this run and of its checkpoint differ:", differences,
              "\nset optim.override_opt_param_scheduler=true to use this run's schedule, or "
              "optim.use_checkpoint_opt_param_scheduler=true to use the checkpoint's schedule");
  }
  return saved;
}

ScheduleArgs schedule_args(const config::Config& config) {
  const config::Optim& optim = config.optim;
  const int64_t batch = config.train.global_batch_size;
  const int64_t train_samples =
      config.train.train_samples > 0 ? config.train.train_samples : config.train.train_iters * batch;
  const auto samples = [batch](int64_t in_iters, int64_t in_samples) {
    return in_samples > 0 ? in_samples : in_iters * batch;
  };
  ScheduleArgs args;
  args.init_lr = optim.lr_warmup_init;
  args.max_lr = optim.lr;
  args.min_lr = optim.min_lr;
  args.lr_decay_steps = samples(optim.lr_decay_iters, optim.lr_decay_samples);
  if (args.lr_decay_steps == 0) args.lr_decay_steps = train_samples;
  args.lr_warmup_steps = optim.lr_warmup_fraction > 0
                             ? optim.lr_warmup_fraction * static_cast<double>(args.lr_decay_steps)
                             : static_cast<double>(samples(optim.lr_warmup_iters, optim.lr_warmup_samples));
  args.lr_decay_style = optim.lr_decay_style;
  args.start_wd = optim.start_weight_decay < 0 ? optim.weight_decay : optim.start_weight_decay;
  args.end_wd = optim.end_weight_decay < 0 ? optim.weight_decay : optim.end_weight_decay;
  args.wd_incr_steps = train_samples;
  args.wd_incr_style = optim.weight_decay_incr_style;
  args.wsd_decay_steps = samples(optim.lr_wsd_decay_iters, optim.lr_wsd_decay_samples);
  args.lr_wsd_decay_style = optim.lr_wsd_decay_style;
  return args;
}

}  // namespace metroplex::optim
