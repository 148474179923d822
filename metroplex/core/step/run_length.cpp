#include "step/run_length.h"

#include <algorithm>

#include "base/error.h"
#include "config/batch_schedule.h"

namespace metroplex::step {

plan::MicrobatchSchedule microbatch_schedule(const config::Config& config, int64_t dp) {
  const config::Train& train = config.train;
  const plan::MicrobatchSizes sizes{train.micro_batch_size, dp, train.decrease_batch_size_if_needed};
  if (!train.step_batch_size_schedule.empty()) {
    return plan::MicrobatchSchedule::steps(train.step_batch_size_schedule, train.seq_length, sizes);
  }
  if (train.rampup_batch_size.empty()) return plan::MicrobatchSchedule::constant(train.global_batch_size, sizes);
  std::string problem;
  const auto rampup = config::read_batch_rampup(train.rampup_batch_size, train.global_batch_size, problem);
  MPX_CHECK(rampup, "config", "train.rampup_batch_size '", train.rampup_batch_size, "': ", problem);
  return plan::MicrobatchSchedule::rampup(*rampup, sizes);
}

RunLength run_length(const config::Config& config, const plan::MicrobatchSchedule& schedule) {
  const config::Train& train = config.train;
  const auto& thresholds = schedule.thresholds();
  RunLength length;
  length.full_batch_size = thresholds.empty() ? train.global_batch_size : thresholds.back().second;
  length.eval_batch_size = train.eval_global_batch_size > 0 ? train.eval_global_batch_size : length.full_batch_size;
  const int64_t last_change = thresholds.empty() ? 0 : thresholds.back().first;
  const auto more = [&] { return has_more_steps(train, schedule, length.iterations, length.samples); };
  while (more() && length.samples <= last_change) {
    length.samples += schedule.at(length.samples, false).running_global_batch_size;
    ++length.iterations;
  }
  if (more()) {
    // The batch size is constant from here on, so the rest is a division.
    const int64_t size = schedule.at(length.samples, false).running_global_batch_size;
    const int64_t left =
        train.train_samples - length.samples + (train.step_batch_size_schedule.empty() ? 0 : size - 1);
    const int64_t rest = train.train_samples > 0 ? left / size : train.train_iters - length.iterations;
    length.iterations += rest;
    length.samples += rest * size;
  }
  MPX_CHECK(train.train_samples == 0 || length.iterations > 0, "config",
            "train.train_samples = ", train.train_samples, ": must be at least one batch of ",
            schedule.at(0, false).running_global_batch_size, " samples; raise it or lower the batch size");
  return length;
}

bool has_more_steps(const config::Train& train, const plan::MicrobatchSchedule& schedule, int64_t iteration,
                    int64_t consumed_samples) {
  if (train.train_samples == 0) return iteration < train.train_iters;
  if (!train.step_batch_size_schedule.empty()) return consumed_samples < train.train_samples;
  return consumed_samples + schedule.at(consumed_samples, false).running_global_batch_size <= train.train_samples;
}

int64_t count_samples(const plan::MicrobatchSchedule& schedule, int64_t iterations) {
  const auto& thresholds = schedule.thresholds();
  const int64_t last_change = thresholds.empty() ? 0 : thresholds.back().first;
  int64_t samples = 0, done = 0;
  for (; done < iterations && samples <= last_change; ++done)
    samples += schedule.at(samples, false).running_global_batch_size;
  return samples + (iterations - done) * schedule.at(samples, false).running_global_batch_size;
}

config::Config convert_to_samples(const config::Config& config, const plan::MicrobatchSchedule& schedule) {
  config::Config settings = config;
  settings.train.global_batch_size = run_length(config, schedule).full_batch_size;
  if (settings.train.step_batch_size_schedule.empty() || settings.train.train_samples > 0) return settings;
  config::Optim& optim = settings.optim;
  const int64_t decay = optim.lr_decay_iters > 0 ? optim.lr_decay_iters : settings.train.train_iters;
  const auto fill = [&](int64_t& value, int64_t samples) {
    if (value == 0) value = samples;
  };
  fill(optim.lr_decay_samples, count_samples(schedule, decay));
  fill(optim.lr_warmup_samples, count_samples(schedule, optim.lr_warmup_iters));
  const int64_t last = std::min(optim.lr_wsd_decay_iters, decay);
  fill(optim.lr_wsd_decay_samples, count_samples(schedule, decay) - count_samples(schedule, decay - last));
  settings.train.train_samples = count_samples(schedule, settings.train.train_iters);
  return settings;
}

}  // namespace metroplex::step
