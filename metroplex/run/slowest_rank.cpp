#include "run/slowest_rank.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/core_wait.h"
#include "base/error.h"
#include "run/gather_values.h"

namespace metroplex::run {
namespace {

double median(const std::vector<RankTimes>& ranks, double (*value)(const RankTimes&)) {
  std::vector<double> values;
  for (const RankTimes& times : ranks) values.push_back(value(times));
  const size_t middle = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double own(const RankTimes& times) { return times.own(); }

std::string reason(const std::vector<RankTimes>& ranks, const RankTimes& slowest, double excess) {
  if (excess <= kBalanced * slowest.wall) return slowest.communication > slowest.wall / 2 ? "link" : "balanced";
  const auto explains = [&](double (*value)(const RankTimes&)) {
    return value(slowest) - median(ranks, value) > excess / 2;
  };
  if (explains([](const RankTimes& times) { return times.loader; })) return "loader";
  if (explains([](const RankTimes& times) { return times.without_core; })) return "host";
  return "own work";
}

std::string format_ms(double seconds) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2f ms", seconds * 1000);
  return buffer;
}

}  // namespace

SlowestRank find_slowest(const std::vector<RankTimes>& ranks, int64_t steps) {
  const auto most = [&](double (*value)(const RankTimes&)) {
    return std::max_element(ranks.begin(), ranks.end(), [value](const RankTimes& left, const RankTimes& right) {
      return value(left) < value(right);
    });
  };
  const auto slowest = most(own);
  const auto waiting = most([](const RankTimes& times) { return times.communication; });
  const double per_step = 1 / static_cast<double>(steps), excess = slowest->own() - median(ranks, own);
  SlowestRank result;
  result.rank = static_cast<int>(slowest - ranks.begin());
  result.why = reason(ranks, *slowest, excess);
  result.seconds = per_step * (result.why == "link" ? slowest->communication : excess);
  result.text = base::concat("rank ", result.rank, ", ", result.why, ": ", format_ms(slowest->own() * per_step),
                             " of its own per step, ", format_ms(excess * per_step), " above the median; loader ",
                             format_ms(slowest->loader * per_step), ", without a core ",
                             format_ms(slowest->without_core * per_step), "; rank ", waiting - ranks.begin(),
                             " communicates longest, ", format_ms(waiting->communication * per_step), " for ",
                             static_cast<int64_t>(waiting->bytes * per_step), " bytes");
  return result;
}

RankTimer::Reading RankTimer::read() const {
  return {RankRecorder::Clock::now(), recorder_.total_seconds(), base::seconds_without_core(),
          recorder_.total_bytes()};
}

void RankTimer::begin_step() { step_start_ = read(); }

void RankTimer::end_step() {
  const Reading now = read();
  times_.wall += std::chrono::duration<double>(now.time - step_start_.time).count();
  times_.communication += now.communication - step_start_.communication;
  times_.without_core += now.without_core - step_start_.without_core;
  times_.bytes += static_cast<double>(now.bytes - step_start_.bytes);
  ++steps_;
}

void RankTimer::begin_loading() {
  loading_start_.time = RankRecorder::Clock::now();
  loading_start_.communication = recorder_.total_seconds();
}

// The broadcast of the microbatches is communication.
void RankTimer::end_loading() {
  times_.loader += std::chrono::duration<double>(RankRecorder::Clock::now() - loading_start_.time).count() -
                   (recorder_.total_seconds() - loading_start_.communication);
}

std::optional<SlowestRank> RankTimer::report(const comm::World& world, int64_t iteration) {
  const std::vector<RankTimes> ranks = gather_values(std::exchange(times_, {}), world.groups().world);
  const int64_t steps = std::exchange(steps_, 0);
  if (world.rank() != 0 || steps == 0) return std::nullopt;
  SlowestRank slowest = find_slowest(ranks, steps);
  slowest.from = iteration - steps + 1;
  slowest.to = iteration;
  return slowest;
}

}  // namespace metroplex::run
