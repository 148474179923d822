#include "plan/microbatches.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace metroplex::plan {
namespace {

constexpr double kLargestCount = 9e15;  // integers up to here are exact in a double

void check_sizes(const MicrobatchSizes& sizes) {
  constexpr int64_t kMost = int64_t{1} << 30;
  MPX_CHECK(sizes.micro_batch_size > 0 && sizes.micro_batch_size <= kMost, "plan", "train.micro_batch_size ",
            sizes.micro_batch_size, " must be between 1 and ", kMost);
  MPX_CHECK(sizes.data_parallel_size > 0 && sizes.data_parallel_size <= kMost, "plan", "data-parallel size ",
            sizes.data_parallel_size, " must be between 1 and ", kMost);
}

std::pair<int64_t, int64_t> parse_entry(const std::string& entry, int64_t seq_length) {
  const size_t colon = entry.find(':');
  MPX_CHECK(colon != std::string::npos && entry.find(':', colon + 1) == std::string::npos, "plan",
            "batch size schedule entry '", entry, "' is not THRESHOLD:BATCH_SIZE, like 250B:1536");
  int64_t threshold = parse_count(entry.substr(0, colon));
  if (seq_length > 0) threshold /= seq_length;
  const int64_t batch_size = parse_count(entry.substr(colon + 1));
  MPX_CHECK(batch_size > 0, "plan", "batch size schedule entry '", entry, "': the batch size must be positive");
  return {threshold, batch_size};
}

}  // namespace

int64_t parse_count(const std::string& text) {
  const auto bad = [&](const char* rule) {
    MPX_CHECK(false, "plan", "'", text, "' is not a count: ", rule, ", like 768, 1.5K or 250B");
  };
  char* end = nullptr;
  if (text.empty() || !(std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.'))
    bad("it starts with a digit");
  const double value = std::strtod(text.c_str(), &end);
  double scale = 1;
  if (*end != '\0') {
    switch (std::toupper(static_cast<unsigned char>(*end))) {
      case 'K':
        scale = 1e3;
        break;
      case 'M':
        scale = 1e6;
        break;
      case 'B':
        scale = 1e9;
        break;
      case 'T':
        scale = 1e12;
        break;
      default:
        bad("it ends with K, M, B, T or nothing");
    }
    ++end;
  }
  if (*end != '\0') bad("something is left behind it");
  const double count = value * scale;
  if (!(count >= 0 && count <= kLargestCount)) bad("it is too large");
  return static_cast<int64_t>(count);
}

MicrobatchSchedule::MicrobatchSchedule(const MicrobatchSizes& sizes,
                                       std::vector<std::pair<int64_t, int64_t>> thresholds)
    : sizes_(sizes), thresholds_(std::move(thresholds)) {
  check_sizes(sizes_);
}

MicrobatchSchedule MicrobatchSchedule::constant(int64_t global_batch_size, const MicrobatchSizes& sizes) {
  MicrobatchSchedule schedule(sizes, {{0, global_batch_size}});
  const MicrobatchCount count = schedule.at(0);
  MPX_CHECK(count.num_microbatches >= 1, "plan", "train.global_batch_size ", global_batch_size,
            " is less than micro_batch_size ", sizes.micro_batch_size, " x data-parallel size ",
            sizes.data_parallel_size, "; a step needs at least one microbatch");
  return schedule;
}

MicrobatchSchedule MicrobatchSchedule::steps(const std::string& text, int64_t seq_length,
                                             const MicrobatchSizes& sizes) {
  std::vector<std::pair<int64_t, int64_t>> thresholds;
  std::string entry;
  for (const char c : text + ' ') {
    const bool separator = c == ',' || std::isspace(static_cast<unsigned char>(c));
    if (!separator) {
      entry += c;
    } else if (!entry.empty()) {
      thresholds.push_back(parse_entry(entry, seq_length));
      entry.clear();
    }
  }
  MPX_CHECK(!thresholds.empty(), "plan", "the batch size schedule is empty; write it like \"0:768 250B:1536\"");
  std::stable_sort(thresholds.begin(), thresholds.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  MPX_CHECK(thresholds.front().first == 0, "plan", "the batch size schedule begins at sample ",
            thresholds.front().first, "; its first threshold must be 0");
  MPX_CHECK(!sizes.decrease_batch_size_if_needed, "plan",
            "train.step_batch_size_schedule excludes train.decrease_batch_size_if_needed; drop one of the two");
  for (size_t i = 1; i < thresholds.size(); ++i) {
    MPX_CHECK(thresholds[i - 1].first < thresholds[i].first, "plan", "batch size schedule: threshold ",
              thresholds[i].first, " samples is there twice; thresholds must increase");
  }
  return MicrobatchSchedule(sizes, std::move(thresholds));
}

MicrobatchSchedule MicrobatchSchedule::rampup(const Rampup& rampup, const MicrobatchSizes& sizes) {
  MPX_CHECK(rampup.start > 0 && rampup.increment > 0 && rampup.global_batch_size > 0, "plan",
            "batch size ramp-up: start ", rampup.start, ", increment ", rampup.increment, " and global batch size ",
            rampup.global_batch_size, " must be positive");
  const int64_t grow = rampup.global_batch_size - rampup.start;
  MPX_CHECK(grow > 0, "plan", "batch size ramp-up: the start ", rampup.start,
            " must be below train.global_batch_size ", rampup.global_batch_size);
  MPX_CHECK(grow % rampup.increment == 0, "plan", "batch size ramp-up: from ", rampup.start, " to ",
            rampup.global_batch_size, " are ", grow, ", not a multiple of the increment ", rampup.increment);
  MPX_CHECK(rampup.samples > 0, "plan", "batch size ramp-up over ", rampup.samples,
            " samples; give a positive number, or no ramp-up");
  MicrobatchSchedule schedule(sizes, {{0, rampup.start}, {rampup.samples, rampup.global_batch_size}});
  schedule.rampup_ = rampup;
  return schedule;
}

int64_t MicrobatchSchedule::batch_size_at(int64_t consumed_samples) const {
  if (rampup_) {
    if (consumed_samples > rampup_->samples) return rampup_->global_batch_size;
    const int64_t increments = (rampup_->global_batch_size - rampup_->start) / rampup_->increment;
    // In double, as Megatron does it: the step at which a share of a fraction of a sample ends depends on it.
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
