// Measures the time of a rank's steps by part, for the comparison with a prediction (run/step_time_report.h). A step
// extends from the start of its computation to its outcome, without the loader, reports, saves and evaluations.
//   - communication: group calls, with their waits for other ranks
//   - waits: group calls of groups that span pipeline stages, which mostly wait for other stages
//   - forward, backward: pipeline actions without group calls. Time before an action belongs to that action.
//   - update: the rest
// On a GPU only the whole step is meaningful, because the host only issues work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"
#include "plan/pipeline_table.h"
#include "replay/step_time.h"
#include "run/rank_recorder.h"

namespace metroplex::run {

struct StepParts {  // seconds
  double step = 0, forward = 0, backward = 0, communication = 0, waits = 0;

  double update() const { return step - forward - backward - communication - waits; }
  double compute() const { return step - communication - waits; }
  StepParts& operator+=(const StepParts& other);
  StepParts mean(int64_t steps) const;
};

// Parts that the host can distinguish.
enum class PartDetail {
  all,
  compute,  // a replay of a whole step: forward, backward and update are one part
  step      // a GPU
};

struct PartTime {
  std::string name;
  double predicted = 0, measured = 0;  // seconds
};

struct StepComparison {
  int64_t iteration = 0, steps = 0;  // the last iteration, and the number of measured steps
  int rank = 0;
  std::vector<PartTime> parts;  // the last one is "step", the sum of the others

  const PartTime& step() const { return parts.back(); }
};

// `measured` is the mean of a step.
std::vector<PartTime> compare_parts(const replay::RankTimes& predicted, const StepParts& measured, PartDetail detail);
// " predicted / measured step of rank 1 (ms): forward 73.5 / 75.1 | ... | step 230.0 / 236.0"
std::string to_string(const StepComparison& comparison);
// Returns the part with the largest difference if a part or the step differs by more than `error` times the predicted
// step, else null.
const PartTime* find_difference(const StepComparison& comparison, double error);

class StepTimer {
 public:
  // The group calls of `world` must report to `recorder`, which must outlive this object.
  StepTimer(const RankRecorder& recorder, const comm::World& world);

  // Discards actions and loads before the step.
  void begin_step();
  StepParts end_step();
  // Call after each pipeline action.
  void after_action(const plan::Action& action);
  // Call around the loader. On a GPU, its time in a step counts, because it overlaps the step.
  void begin_loading();
  void end_loading();

 private:
  struct Reading {
    RankRecorder::Clock::time_point time;
    double calls = 0, waits = 0;  // totals
  };
  Reading read() const;

  const RankRecorder& recorder_;
  const bool gpu_;
  std::vector<const RankRecorder::GroupCalls*> between_stages_;
  StepParts parts_;
  Reading start_, action_start_, loading_start_;
  double unassigned_ = 0;  // seconds before the next action
};

}  // namespace metroplex::run
