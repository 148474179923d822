// The state of a run on one rank: assembly, position in the data, timers, log.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "plan/microbatches.h"
#include "run/metrics.h"
#include "run/rank_recorder.h"
#include "run/state.h"
#include "run/trainer.h"
#include "step/assemble.h"
#include "step/run_length.h"
#include "step/timers.h"

namespace metroplex::run {

struct RunContext {
  TrainerEnvironment environment;
  std::unique_ptr<step::Assembly> assembly;
  step::Timers timers;
  plan::MicrobatchSchedule microbatches;
  step::RunLength length;
  Position position = {};
  RunSummary summary = {};
  std::optional<Metrics> metrics = {};  // rank 0, once its files are open
  std::set<std::string> warned = {};    // by warn_once()
  RankRecorder* recorder = nullptr;     // receives the calls of world() if a report needs them

  const config::Config& config() const { return assembly->process.config; }
  const comm::Groups& groups() const { return assembly->process.groups(); }
  const comm::World& world() const { return *assembly->process.world; }
  files::FileSystem& disk() const { return *environment.disk; }
  bool first_rank() const { return world().rank() == 0; }
  // Log lines of rank 0.
  void say(const std::string& line) const {
    if (first_rank()) environment.log->info(line);
  }
  void warn(const std::string& line) const {
    if (first_rank()) environment.log->warn(line);
  }
  // Every evaluation would repeat some warnings.
  void warn_once(const std::string& line) {
    if (warned.insert(line).second) warn(line);
  }
  bool stop_requested() const { return environment.stop_requested && environment.stop_requested(); }
  bool has_step_after(const Position& from) const {
    return step::has_more_steps(config().train, microbatches, from.iteration, from.consumed_train_samples);
  }
  // One microbatch of every data-parallel rank.
  int64_t samples_of_microbatch() const { return config().train.micro_batch_size * groups().dp.size(); }
};

}  // namespace metroplex::run
