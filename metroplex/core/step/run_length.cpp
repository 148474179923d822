#include "step/run_length.h"

#include <algorithm>

#include "base/error.h"
#include "config/batch_schedule.h"

namespace metroplex::step {

plan::MicrobatchSchedule microbatch_schedule(const config::Config& config, int64_t dp) {
  const config::Train& t = config.train;
  const plan::MicrobatchSizes sizes{t.micro_batch_size, dp, t.decrease_batch_size_if_needed};
  if (!t.step_batch_size_schedule.empty()) {
    return plan::MicrobatchSchedule::steps(t.step_batch_size_schedule, t.seq_length, sizes);
  }
  if (t.rampup_batch_size.empty()) return plan::MicrobatchSchedule::constant(t.global_batch_size, sizes);
  std::string problem;
  const auto rampup = config::read_batch_rampup(t.rampup_batch_size, t.global_batch_size, problem);
  MPX_CHECK(rampup, "config", "train.rampup_batch_size '", t.rampup_batch_size, "': ", problem);
  return plan::MicrobatchSchedule::rampup(*rampup, sizes);
}

RunLength run_length(const config::Config& config, const plan::MicrobatchSchedule& schedule) {
  const config::Train& t = config.train;
  const auto& thresholds = schedule.thresholds();
  RunLength length;
  length.full_batch_size = thresholds.empty() ? t.global_batch_size : thresholds.back().second;
  length.eval_batch_size = t.eval_global_batch_size > 0 ? t.eval_global_batch_size : length.full_batch_size;
  const int64_t last_change = thresholds.empty() ? 0 : thresholds.back().first;
  const auto more = [&] { return more_steps(t, schedule, length.iterations, length.samples); };
  while (more() && length.samples <= last_change) {
    length.samples += schedule.at(length.samples, false).running_global_batch_size;
    ++length.iterations;
  }
  if (more()) {
    // The batch size is constant from here on, so the rest is a division.
    const int64_t size = schedule.at(length.samples, false).running_global_batch_size;
    const int64_t left = t.train_samples - length.samples + (t.step_batch_size_schedule.empty() ? 0 : size - 1);
    const int64_t rest = t.train_samples > 0 ? left / size : t.train_iters - length.iterations;
    length.iterations += rest;
    length.samples += rest * size;
  }
  MPX_CHECK(t.train_samples == 0 || length.iterations > 0, "config", "train.train_samples = ", t.train_samples,
            ": must be at least one batch of ", schedule.at(0, false).running_global_batch_size,
            " samples; raise it or lower the batch size");
  return length;
}

bool more_steps(const config::Train& t, const plan::MicrobatchSchedule& schedule, int64_t iteration,
                int64_t consumed_samples) {
  if (t.train_samples == 0) return iteration < t.train_iters;
  if (!t.step_batch_size_schedule.empty()) return consumed_samples < t.train_samples;
  return consumed_samples + schedule.at(consumed_samples, false).running_global_batch_size <= t.train_samples;
}

int64_t samples_of(const plan::MicrobatchSchedule& schedule, int64_t iterations) {
  const auto& thresholds = schedule.thresholds();
  const int64_t last_change = thresholds.empty() ? 0 : thresholds.back().first;
  int64_t samples = 0, done = 0;
  for (; done < iterations && samples <= last_change; ++done)
    samples += schedule.at(samples, false).running_global_batch_size;
  return samples + (iterations - done) * schedule.at(samples, false).running_global_batch_size;
}

config::Config in_samples(const config::Config& config, const plan::MicrobatchSchedule& schedule) {
  config::Config c = config;
  c.train.global_batch_size = run_length(config, schedule).full_batch_size;
  if (c.train.step_batch_size_schedule.empty() || c.train.train_samples > 0) return c;
  config::Optim& o = c.optim;
  const int64_t decay = o.lr_decay_iters > 0 ? o.lr_decay_iters : c.train.train_iters;
  const auto fill = [&](int64_t& value, int64_t samples) {
    if (value == 0) value = samples;
  };
  fill(o.lr_decay_samples, samples_of(schedule, decay));
  fill(o.lr_warmup_samples, samples_of(schedule, o.lr_warmup_iters));
  const int64_t last = std::min(o.lr_wsd_decay_iters, decay);
  fill(o.lr_wsd_decay_samples, samples_of(schedule, decay) - samples_of(schedule, decay - last));
  c.train.train_samples = samples_of(schedule, c.train.train_iters);
  return c;
}

}  // namespace metroplex::step
