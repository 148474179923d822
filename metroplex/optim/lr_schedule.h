// Learning rate and weight decay as pure functions of the number of samples consumed by successful steps: Megatron's
// OptimizerParamScheduler. A schedule has no state, so it can be evaluated for any sample count.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"

namespace metroplex::optim {

// All lengths in samples.
struct ScheduleArgs {
  double init_lr = 0, max_lr = 0, min_lr = 0;
  double lr_warmup_steps = 0;  // not rounded with optim.lr_warmup_fraction, as in Megatron
  int64_t lr_decay_steps = 1;
  config::Choice<config::LrDecay> lr_decay_style = config::LrDecay::linear;
  double start_wd = 0, end_wd = 0;
  int64_t wd_incr_steps = 1;
  config::Choice<config::WeightDecayIncr> wd_incr_style = config::WeightDecayIncr::constant;
  int64_t wsd_decay_steps = 0;                                           // required by WSD
  std::optional<config::Choice<config::WsdDecay>> lr_wsd_decay_style{};  // required by WSD

  bool operator==(const ScheduleArgs&) const = default;
};

// The values of a parameter group; NaN: the schedule's.
struct GroupFactors {
  double max_lr, min_lr;
  double start_wd, end_wd;
  double lr_mult = 1.0, wd_mult = 1.0;
  GroupFactors();
};

class LrSchedule {
 public:
  // Throws base::Error naming the argument and the rule, unless 0 <= min_lr <= max_lr, init_lr <= max_lr, decay and
  // warm-up lengths fit, WSD has its decay length, constant weight decay has one value, and styles are known.
  explicit LrSchedule(ScheduleArgs args);

  // Warm-up is inclusive (<=) and linear from init_lr; past lr_decay_steps the rate is min_lr.
  double lr(int64_t num_steps, const GroupFactors& group = {}) const;
  // Throws base::Error when constant weight decay would change from the group's start_wd to another end_wd.
  double weight_decay(int64_t num_steps, const GroupFactors& group = {}) const;
  const ScheduleArgs& args() const { return args_; }

 private:
  double decayed(int64_t num_steps, double max_lr, double min_lr) const;
  ScheduleArgs args_;
};

enum class ScheduleSource { must_agree, override_checkpoint, use_checkpoint };

// The schedule of a resumed run. must_agree: throws unless every value of the checkpoint equals the run's own; the
// error names each differing key and the two options that choose a side.
ScheduleArgs merge_schedules(const ScheduleArgs& own, const ScheduleArgs& saved, ScheduleSource source);

// From the config; iterations are multiplied by the global batch size.
ScheduleArgs schedule_args(const config::Config& config);

}  // namespace metroplex::optim
