// Learning rate and weight decay as pure functions of the samples consumed by successful steps: Megatron's
// OptimizerParamScheduler. A schedule has no state and can be evaluated for any sample count.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"

namespace metroplex::optim {

// All lengths are in samples.
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

// Overrides for a parameter group; NaN: use the schedule's value.
struct GroupFactors {
  double max_lr, min_lr;
  double start_wd, end_wd;
  double lr_mult = 1.0, wd_mult = 1.0;
  GroupFactors();
};

class LrSchedule {
 public:
  // Throws base::Error with the argument and the rule for invalid arguments. Requires 0 <= min_lr <= max_lr, init_lr
  // <= max_lr, and a warmup that ends before the decay. WSD needs its decay length and style. Weight decay must be
  // non-negative and non-decreasing; a constant one has equal start and end.
  explicit LrSchedule(ScheduleArgs args);

  // Warmup is inclusive (<=) and linear from init_lr. After lr_decay_steps the rate is min_lr, except for a constant
  // style.
  double lr(int64_t num_steps, const GroupFactors& group = {}) const;
  // Throws base::Error if constant weight decay has different start_wd and end_wd in the group.
  double weight_decay(int64_t num_steps, const GroupFactors& group = {}) const;
  const ScheduleArgs& args() const { return args_; }

 private:
  double decayed_lr(int64_t num_steps, double max_lr, double min_lr) const;
  ScheduleArgs args_;
};

enum class ScheduleSource { must_agree, override_checkpoint, use_checkpoint };

// Returns the schedule of a resumed run. With must_agree, throws unless the checkpoint's values equal the run's. The
// error lists the differing keys and the two options that choose a side.
ScheduleArgs merge_schedules(const ScheduleArgs& own, const ScheduleArgs& saved, ScheduleSource source);

// Builds the schedule from the config. Iterations are multiplied by the global batch size.
ScheduleArgs schedule_args(const config::Config& config);

}  // namespace metroplex::optim
