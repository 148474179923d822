#include "run/intervals.h"

#include <algorithm>
#include <cmath>

namespace metroplex::run {

static bool at_multiple(int64_t iteration, int64_t interval) { return interval > 0 && iteration % interval == 0; }

Due actions_due(const config::Config& config, const plan::MicrobatchSchedule& schedule, const Position& position,
                bool stop_requested) {
  const config::Train& train = config.train;
  Due due;
  due.last = !step::has_more_steps(train, schedule, position.iteration, position.consumed_train_samples);
  due.exit_early = !due.last && (stop_requested || at_multiple(position.iteration, train.exit_interval));
  due.log = at_multiple(position.iteration, train.log_interval) || due.last || stop_requested;
  due.save = at_multiple(position.iteration, config.checkpoint.save_interval) || due.last || stop_requested ||
             due.exit_early;
  due.evaluate = !due.last && !stop_requested && at_multiple(position.iteration, train.eval_interval);
  return due;
}

// As in Megatron-LM, the loss of a skipped step is excluded from the mean.
void Interval::add(const step::StepOutcome& outcome, int64_t tokens) {
  if (!std::isfinite(outcome.loss)) ++nan_;
  if (outcome.updated) {
    loss_ += outcome.loss;
    for (const auto& [name, value] : outcome.terms) terms_[name] += value;
    ++updates_;
  } else {
    ++skipped_;
  }
  tokens_ += static_cast<double>(tokens);
  ++steps_;
}

IterationMetrics Interval::means() const {
  IterationMetrics m;
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  m.elapsed_ms_per_iteration = elapsed * 1000 / static_cast<double>(steps_);
  m.lm_loss = loss_ / static_cast<double>(std::max<int64_t>(1, updates_));
  for (const auto& [name, sum] : terms_) m.terms[name] = sum / static_cast<double>(updates_);
  m.skipped_iterations = skipped_;
  m.nan_iterations = nan_;
  m.tokens_per_second = tokens_ / elapsed;
  return m;
}

void Interval::begin() { *this = Interval(); }

bool LargestNorm::is_outlier(double norm) {
  constexpr int kFirst = 100;  // number of norms before the check is active
  const bool large = seen_ >= kFirst && norm > kFactor * largest_;
  if (std::isfinite(norm)) largest_ = std::max(largest_, norm);
  ++seen_;
  return large;
}

}  // namespace metroplex::run
