#include "run/step_times.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "base/error.h"

namespace metroplex::run {
namespace {

double seconds_between(RankRecorder::Clock::time_point start, RankRecorder::Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

bool spans_stages(const std::vector<int>& ranks, const topology::RankGrid& grid) {
  std::set<int> stages;
  for (const int rank : ranks) stages.insert(grid.coordinates(rank).pp);
  return stages.size() > 1;
}

double difference(const PartTime& part) { return std::abs(part.measured - part.predicted); }

}  // namespace

StepParts& StepParts::operator+=(const StepParts& other) {
  step += other.step;
  forward += other.forward;
  backward += other.backward;
  communication += other.communication;
  waits += other.waits;
  return *this;
}

StepParts StepParts::mean(int64_t steps) const {
  const auto count = static_cast<double>(steps);
  return {step / count, forward / count, backward / count, communication / count, waits / count};
}

std::vector<PartTime> compare_parts(const replay::RankTimes& predicted, const StepParts& measured,
                                    PartDetail detail) {
  std::vector<PartTime> parts;
  if (detail == PartDetail::all) {
    parts = {{"forward", predicted.forward, measured.forward},
             {"backward", predicted.backward + predicted.weight, measured.backward},
             {"update", predicted.optimizer, measured.update()}};
  }
  if (detail == PartDetail::compute) parts = {{"compute", predicted.compute(), measured.compute()}};
  if (detail != PartDetail::step) {
    parts.push_back({"communication", predicted.communication(), measured.communication});
    parts.push_back({"waits", predicted.idle, measured.waits});
  }
  parts.push_back({"step", predicted.total(), measured.step});
  return parts;
}

std::string to_string(const StepComparison& comparison) {
  std::string line = base::concat(" predicted / measured step of rank ", comparison.rank, " (ms):");
  for (const PartTime& part : comparison.parts) {
    char text[96];
    std::snprintf(text, sizeof text, "%s %s %.1f / %.1f", &part == comparison.parts.data() ? "" : " |",
                  part.name.c_str(), 1000 * part.predicted, 1000 * part.measured);
    line += text;
  }
  return line;
}

const PartTime* find_difference(const StepComparison& comparison, double error) {
  const auto larger = [](const PartTime& left, const PartTime& right) {
    return difference(left) < difference(right);
  };
  const std::vector<PartTime>& parts = comparison.parts;
  const double bar = error * comparison.step().predicted;
  if (difference(*std::max_element(parts.begin(), parts.end(), larger)) <= bar) return nullptr;
  const auto end = parts.size() > 1 ? parts.end() - 1 : parts.end();
  return &*std::max_element(parts.begin(), end, larger);
}

StepTimer::StepTimer(const RankRecorder& recorder, const comm::World& world)
    : recorder_(recorder), gpu_(world.target().gpu()) {
  for (const auto& [name, calls] : recorder.groups()) {
    if (spans_stages(calls.ranks, world.grid())) between_stages_.push_back(&calls);
  }
}

StepTimer::Reading StepTimer::read() const {
  Reading reading{RankRecorder::Clock::now(), recorder_.total_seconds()};
  for (const RankRecorder::GroupCalls* calls : between_stages_) reading.waits += calls->seconds;
  return reading;
}

void StepTimer::begin_step() {
  parts_ = {};
  unassigned_ = 0;
  start_ = action_start_ = read();
}

// Two actions in turns are reported together; they share the time equally.
void StepTimer::after_action(const plan::Action& action) {
  const Reading now = read();
  unassigned_ += seconds_between(action_start_.time, now.time) - (now.calls - action_start_.calls);
  action_start_ = now;
  if (!plan::is_compute(action.kind)) return;
  const double seconds = action.in_turns ? unassigned_ / 2 : unassigned_;
  unassigned_ -= seconds;
  (action.kind == plan::ActionKind::forward ? parts_.forward : parts_.backward) += seconds;
}

void StepTimer::begin_loading() { loading_start_ = read(); }

void StepTimer::end_loading() {
  if (gpu_) return;
  const Reading now = read();
  start_.time += now.time - loading_start_.time;
  start_.calls += now.calls - loading_start_.calls;
  start_.waits += now.waits - loading_start_.waits;
}

StepParts StepTimer::end_step() {
  const Reading now = read();
  parts_.step = seconds_between(start_.time, now.time);
  parts_.waits = now.waits - start_.waits;
  parts_.communication = std::max(0.0, now.calls - start_.calls - parts_.waits);  // rounding
  return parts_;
}

}  // namespace metroplex::run
