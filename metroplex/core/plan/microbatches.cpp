#include "plan/microbatches.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::plan {
namespace {

void check_sizes(const MicrobatchSizes& sizes) {
  constexpr int64_t kMost = int64_t{1} << 30;
  MPX_CHECK(sizes.micro_batch_size > 0 && sizes.micro_batch_size <= kMost, "plan",
            "train.micro_batch_size = ", sizes.micro_batch_size, ": must be between 1 and ", kMost);
  MPX_CHECK(sizes.data_parallel_size > 0 && sizes.data_parallel_size <= kMost, "plan", "data-parallel size ",
            sizes.data_parallel_size, " must be between 1 and ", kMost);
}

}  // namespace

MicrobatchSchedule::MicrobatchSchedule(const MicrobatchSizes& sizes,
                                       std::vector<std::pair<int64_t, int64_t>> thresholds)
    : sizes_(sizes), thresholds_(std::move(thresholds)) {
  check_sizes(sizes_);
}

MicrobatchSchedule MicrobatchSchedule::constant(int64_t global_batch_size, const MicrobatchSizes& sizes) {
  MicrobatchSchedule schedule(sizes, {{0, global_batch_size}});
  const MicrobatchCount count = schedule.at(0);
  MPX_CHECK(count.num_microbatches >= 1, "plan", "train.global_batch_size = ", global_batch_size,
            ": is less than micro_batch_size ", sizes.micro_batch_size, " x data-parallel size ",
            sizes.data_parallel_size, "; a step needs at least one microbatch");
  return schedule;
}

MicrobatchSchedule MicrobatchSchedule::steps(const std::string& text, int64_t seq_length,
                                             const MicrobatchSizes& sizes) {
  std::string problem;
  const auto steps = config::read_batch_steps(text, seq_length, problem);
  MPX_CHECK(steps.has_value(), "plan", "train.step_batch_size_schedule '", text, "': ", problem,
            "; write it like \"0:768 250B:1536\"");
  MPX_CHECK(!sizes.decrease_batch_size_if_needed, "plan",
            "train.step_batch_size_schedule excludes train.decrease_batch_size_if_needed; drop one of the two");
  std::vector<std::pair<int64_t, int64_t>> thresholds;
  for (const config::BatchStep& step : *steps) thresholds.emplace_back(step.first_sample, step.global_batch_size);
  return MicrobatchSchedule(sizes, std::move(thresholds));
}

MicrobatchSchedule MicrobatchSchedule::rampup(const Rampup& rampup, const MicrobatchSizes& sizes) {
  const std::string problem = config::rampup_problem(rampup);
  MPX_CHECK(problem.empty(), "plan", "train.rampup_batch_size: ", problem,
            "; write it like \"16 16 300000\", or leave it out");
  MicrobatchSchedule schedule(sizes, {{0, rampup.start}, {rampup.samples, rampup.global_batch_size}});
  schedule.rampup_ = rampup;
  return schedule;
}

int64_t MicrobatchSchedule::batch_size_at(int64_t consumed_samples) const {
  if (rampup_) {
    if (consumed_samples > rampup_->samples) return rampup_->global_batch_size;
    const int64_t increments = (rampup_->global_batch_size - rampup_->start) / rampup_->increment;
    // In double like Megatron, because rounding decides the step at which an increment ends.
    const double samples_per_increment = static_cast<double>(rampup_->samples) / static_cast<double>(increments);
    const auto step = static_cast<int64_t>(static_cast<double>(consumed_samples) / samples_per_increment);
    return std::min(rampup_->start + step * rampup_->increment, rampup_->global_batch_size);
  }
  int64_t batch_size = thresholds_.front().second;
  for (const auto& [threshold, size] : thresholds_) {
    if (consumed_samples >= threshold) batch_size = size;
  }
  return batch_size;
}

MicrobatchCount MicrobatchSchedule::at(int64_t consumed_samples, bool check) const {
  const int64_t divisor = sizes_.micro_batch_size * sizes_.data_parallel_size;
  MicrobatchCount count;
  count.global_batch_size = batch_size_at(consumed_samples);
  count.running_global_batch_size = count.global_batch_size;
  if (sizes_.decrease_batch_size_if_needed) count.running_global_batch_size -= count.global_batch_size % divisor;
  MPX_CHECK(!check || count.running_global_batch_size % divisor == 0, "plan", "global batch size ",
            count.global_batch_size, " (after ", consumed_samples, " samples) is not a multiple of micro_batch_size ",
            sizes_.micro_batch_size, " x data-parallel size ", sizes_.data_parallel_size, " = ", divisor,
            "; change one of them or set train.decrease_batch_size_if_needed");
  count.num_microbatches = count.running_global_batch_size / divisor;
  return count;
}

}  // namespace metroplex::plan
