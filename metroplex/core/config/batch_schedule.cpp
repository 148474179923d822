#include "config/batch_schedule.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

#include "base/digit_groups.h"
#include "base/error.h"

namespace metroplex::config {

using base::concat;

constexpr double kLargestCount = 9e15;  // integers up to this value are exact in a double

static double unit(char letter) {
  switch (std::toupper(static_cast<unsigned char>(letter))) {
    case 'K':
      return 1e3;
    case 'M':
      return 1e6;
    case 'B':
      return 1e9;
    case 'T':
      return 1e12;
    default:
      return 0;
  }
}

std::optional<int64_t> read_count(const std::string& written, std::string& problem) {
  const std::string text = base::without_digit_groups(written);
  const auto refuse = [&](const char* rule) {
    problem = concat("'", text, "' is not a count: ", rule, ", like 768, 1.5K or 250B");
    return std::nullopt;
  };
  if (text.empty() || !(std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.'))
    return refuse("it must start with a digit");
  const char* const end = text.data() + text.size();
  double count = 0;
  auto [stop, error] = std::from_chars(text.data(), end, count);
  if (error == std::errc::invalid_argument) return refuse("it is not a number");
  if (stop != end) {
    if (unit(*stop) == 0) return refuse("it must end with K, M, B, T or a digit");
    count *= unit(*stop++);
  }
  if (stop != end) return refuse("it has text after the unit");
  if (error != std::errc() || !(count <= kLargestCount)) return refuse("it is too large");
  return static_cast<int64_t>(count);
}

static std::optional<BatchStep> read_step(const std::string& entry, std::string& problem) {
  const size_t colon = entry.find(':');
  if (colon == std::string::npos || entry.find(':', colon + 1) != std::string::npos) {
    problem = "'" + entry + "' is not THRESHOLD:BATCH_SIZE, like 250B:1536";
    return std::nullopt;
  }
  const auto threshold = read_count(entry.substr(0, colon), problem);
  const auto size = threshold ? read_count(entry.substr(colon + 1), problem) : std::nullopt;
  if (!size) return std::nullopt;
  if (*size < 1 || *size > 1000000000) {
    problem = "'" + entry + "': a batch size is between 1 and 1000000000";
    return std::nullopt;
  }
  return BatchStep{*threshold, *size};
}

std::optional<std::vector<BatchStep>> read_batch_steps(const std::string& text, int64_t seq_length,
                                                       std::string& problem) {
  std::string spaced = text;
  std::replace(spaced.begin(), spaced.end(), ',', ' ');
  std::istringstream stream(spaced);
  std::vector<BatchStep> steps;
  for (std::string entry; stream >> entry;) {
    const auto step = read_step(entry, problem);
    if (!step) return std::nullopt;
    steps.push_back(*step);
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const BatchStep& a, const BatchStep& b) { return a.first_sample < b.first_sample; });
  if (steps.empty() || steps.front().first_sample != 0) {
    problem = "the first step must begin at 0";
    return std::nullopt;
  }
  for (BatchStep& step : steps) step.first_sample /= std::max<int64_t>(seq_length, 1);
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i - 1].first_sample == steps[i].first_sample) {
      problem = concat("two steps begin at the same threshold, ", steps[i].first_sample, " samples");
      return std::nullopt;
    }
  }
  return steps;
}

std::string rampup_problem(const BatchRampup& rampup) {
  if (rampup.start < 1 || rampup.increment < 1 || rampup.global_batch_size < 1 || rampup.samples < 1) {
    return concat("start ", rampup.start, ", increment ", rampup.increment, ", samples ", rampup.samples,
                  " and global batch size ", rampup.global_batch_size, " must be positive");
  }
  const int64_t grow = rampup.global_batch_size - rampup.start;
  if (grow < 1 || grow % rampup.increment != 0) {
    return concat("train.global_batch_size = ", rampup.global_batch_size, " is not reached from ", rampup.start,
                  " in steps of ", rampup.increment);
  }
  return grow / rampup.increment > 1000000 ? "more than a million steps" : "";
}

std::optional<BatchRampup> read_batch_rampup(const std::string& text, int64_t global_batch_size,
                                             std::string& problem) {
  std::istringstream stream(base::without_digit_groups(text));
  BatchRampup rampup;
  std::string rest;
  if (!(stream >> rampup.start >> rampup.increment >> rampup.samples) || stream >> rest) {
    problem = "expected three whole numbers: START INCREMENT SAMPLES";
    return std::nullopt;
  }
  rampup.global_batch_size = global_batch_size;
  problem = rampup_problem(rampup);
  return problem.empty() ? std::optional(rampup) : std::nullopt;
}

}  // namespace metroplex::config
