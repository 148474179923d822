#include "run/trainer.h"

#include <optional>

#include "base/error.h"
#include "checkpoint/folder_lock.h"
#include "device/device.h"
#include "files/file_system.h"
#include "run/batches_ahead.h"
#include "run/beginning.h"
#include "run/evaluation.h"
#include "run/intervals.h"
#include "run/run_data.h"
#include "run/run_folders.h"
#include "run/run_lines.h"
#include "run/run_saves.h"
#include "run/step_reports.h"
#include "run/step_time_report.h"
#include "run/step_trace.h"
#include "step/step.h"

namespace metroplex::run {
namespace {

std::unique_ptr<device::MemoryMeter> make_meter(const config::Config& config, const comm::World& world,
                                                bool forward_only) {
  if (forward_only || !config.memory.log_memory) return nullptr;
  const bool cpu = world.device().is_cpu();
  return std::make_unique<device::MemoryMeter>(cpu ? device::MemoryMeter::Of::host : device::MemoryMeter::Of::gpu);
}

RunContext make_context(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
                        const TrainerEnvironment& environment, bool forward_only) {
  const bool patterns = !config.checkpoint.load_only.empty() || !config.checkpoint.load_except.empty();
  const auto values =
      config.model.from.empty() || patterns ? step::InitialValues::sampled : step::InitialValues::loaded;
  plan::MicrobatchSchedule microbatches = step::microbatch_schedule(config, world.groups().dp.size());
  const step::RunLength length = step::run_length(config, microbatches);
  return {environment,
          step::assemble(config, world, tokenizer.vocab_size, forward_only, models::build_stage,
                         environment.disk.get(), values),
          step::Timers(config.train.timing_log_level, world.device().is_cpu() ? nullptr : device::synchronize),
          std::move(microbatches), length};
}

comm::World with_recorder(const config::Config& config, const comm::World& world, RankRecorder& recorder) {
  if (!config.train.trace_file.empty()) return world.recorded(recorder);
  const bool measures = config.train.log_slowest_rank || (!config.train.machine.empty() && world.device().is_cpu());
  return measures ? world.with_recorded_groups(recorder) : world;
}

class Job {
 public:
  Job(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
      const TrainerEnvironment& environment, bool forward_only)
      : world_(forward_only ? world : with_recorder(config, world, recorder_)),
        meter_(make_meter(config, world, forward_only)),
        run_(make_context(config, world_, tokenizer, environment, forward_only)),
        data_(run_.assembly->process, run_.length, tokenizer, forward_only, environment.disk) {
    run_.recorder = &recorder_;
    run_.position.tokenizer = tokenizer.files;
    run_.position.train_order = data_.train_order();
  }

  RunSummary train(int64_t eod) {
    step::Assembly& assembly = *run_.assembly;
    begin(eod);
    while (has_more_steps()) {
      const step::StepInput input = next_step();
      reports_->begin_computation();
      const step::EnqueuedStep enqueued = trace("enqueue-step", [&] { return enqueue_step(assembly, input); });
      prefetch();
      const step::StepOutcome outcome =
          trace("read-outcome", [&] { return read_outcome(assembly, input, enqueued); });
      reports_->end_computation(batches_.size());
      trace("finish-step", [&] { finish_step(outcome); });
      if (!run_due_actions(outcome)) break;
    }
    return end();
  }
  RunSummary evaluate_only();

 private:
  bool has_more_steps() const { return run_.has_step_after(run_.position); }
  void begin(int64_t eod);
  step::StepInput next_step();
  void prefetch();
  void finish_step(const step::StepOutcome& outcome);
  bool run_due_actions(const step::StepOutcome& outcome);
  void save(bool last) {
    run_.timers.measure("save-checkpoint", 0, [&] { saves_->save(last); });
  }
  // A span of train.trace_file.
  template <class Body>
  auto trace(const char* name, const Body& body) -> decltype(body()) {
    return run_.timers.measure(name, step::Timers::kObserverOnly, body);
  }
  void stop();
  void evaluate_at_end();
  RunSummary end();

  RankRecorder recorder_;
  const comm::World world_;
  std::unique_ptr<device::MemoryMeter> meter_;  // constructed before the tensors that it counts
  RunContext run_;
  RunData data_;
  std::optional<StepReports> reports_;
  std::optional<StepTrace> trace_;  // with train.trace_file
  std::optional<RunSaves> saves_;
  std::optional<step::BatchStream> stream_;  // of training
  BatchPrefetcher prefetcher_{[this](const RunData::BatchRequest& request) {
    return run_.timers.measure("batch-generator", 1,
                               [&] { return reports_->load([&] { return data_.next(*stream_, request); }); });
  }};
  std::vector<nn::Microbatch> batches_;  // of the current step
  int64_t global_batch_size_ = 0;        // of the current step
};

void Job::begin(int64_t eod) {
  const config::Config& config = run_.config();
  time_actions(run_.assembly->model, run_.assembly->graphs, run_.timers);
  saves_.emplace(run_);
  log_start(run_, eod);
  const PastFiles past = load_start(run_, &*saves_);
  if (run_.first_rank() && has_more_steps() && !config.checkpoint.export_hf.empty())
    check_export_target(config, run_.disk());
  open_outputs(run_, past);
  if (!config.checkpoint.save.empty() && run_.first_rank())
    run_.say(" configuration: " + write_run_config(config, run_.disk()));
  if (config.train.eval_interval > 0 && !data_.has(kValid)) {
    run_.warn(
        "train.eval_interval is set, but the validation split has no samples: nothing will be evaluated; give it a "
        "share in data.split");
  }
  if (has_more_steps()) {
    stream_.emplace(data_.stream(kTrain, run_.position.consumed_train_samples));
  } else {
    run_.say(base::concat(" nothing is left to do: ", run_.position.iteration, " of ", run_.length.iterations,
                          " iterations are done"));
  }
  reports_.emplace(run_, std::move(meter_));
  if (!config.train.trace_file.empty()) trace_.emplace(run_, recorder_);
}

// The inputs are valid until finish_step().
step::StepInput Job::next_step() {
  const Position& position = run_.position;
  const plan::MicrobatchCount due = run_.microbatches.at(position.consumed_train_samples);
  global_batch_size_ = due.running_global_batch_size;
  if (trace_) trace_->begin_step(position.iteration + 1);
  reports_->begin_step();
  batches_ = prefetcher_.take({due.num_microbatches, position.consumed_train_samples, position.iteration, kTrain});
  const double minutes = static_cast<double>(run_.config().train.exit_duration_in_mins);
  const bool stop = run_.stop_requested() || (minutes > 0 && reports_->seconds_of_run() > 60 * minutes);
  const bool measures_memory = reports_->measure_memory(), measures_rounding = reports_->measure_rounding();
  return {batches_, position.iteration + 1, position.scheduled_samples,          stop,
          {},       &run_.timers,           measures_memory || measures_rounding};
}

// Fetches the microbatches of the next step while the device computes. Does nothing while memory is measured, so that
// only the step's own allocations count.
void Job::prefetch() {
  Position next = run_.position;
  ++next.iteration;
  next.consumed_train_samples += global_batch_size_;
  if (reports_->is_measuring() || !run_.has_step_after(next)) return;
  const int64_t count = run_.microbatches.at(next.consumed_train_samples).num_microbatches;
  prefetcher_.begin({count, next.consumed_train_samples, next.iteration, kTrain});
}

// As in Megatron-LM, a skipped step does not advance the schedules.
void Job::finish_step(const step::StepOutcome& outcome) {
  Position& position = run_.position;
  reports_->memory_and_graphs(batches_.size());
  ++position.iteration;
  position.consumed_train_samples += global_batch_size_;
  const std::string name = "iteration " + std::to_string(position.iteration);
  if (!outcome.repeated.empty()) run_.warn(name + " ran twice: " + outcome.repeated);
  if (outcome.updated) {
    position.scheduled_samples += global_batch_size_;
  } else {
    ++position.skipped_iterations;
    run_.warn(name + " was skipped: " + outcome.skipped);
  }
  reports_->step(outcome, global_batch_size_);
  saves_->poll();
  run_.summary.last_loss = outcome.loss;
  if (run_.environment.progress && run_.first_rank())
    run_.environment.progress(position.iteration, run_.length.iterations);
  batches_.clear();
}

// Logs, saves and evaluates as due. Returns false if the run ends here.
bool Job::run_due_actions(const step::StepOutcome& outcome) {
  const config::Config& config = run_.config();
  const Due due = actions_due(config, run_.microbatches, run_.position, outcome.stop);
  if (due.log) trace("iteration-line", [&] { reports_->iteration_line(); });
  const auto paused = StepReports::Clock::now();  // saving and evaluating do not count as time per iteration
  if (due.save && !config.checkpoint.save.empty()) save(due.exit_early || !has_more_steps());
  if (due.evaluate && data_.has(kValid)) {
    const int64_t earlier = run_.position.iteration / config.train.eval_interval - 1;
    const auto loss = evaluate(run_, data_, kValid, samples_evaluated(run_, earlier));
    if (!loss) {
      stop();
      return false;
    }
    run_.summary.validation_loss = *loss;
  }
  if (due.exit_early) {
    run_.summary.ending = outcome.stop ? Ending::stopped : Ending::exit_interval;
    return false;
  }
  if (trace_) trace_->end_step();
  reports_->exclude(StepReports::Clock::now() - paused);
  return true;
}

// Ends the run in the middle of an evaluation.
void Job::stop() {
  saves_->finish();  // a failed background save is repeated below
  if (!run_.config().checkpoint.save.empty() && !saves_->has_current()) save(true);
  run_.summary.ending = Ending::stopped;
}

void Job::evaluate_at_end() {
  const config::Train& train = run_.config().train;
  if (train.eval_interval <= 0 || (train.eval_iters <= 0 && !train.full_validation)) return;
  const auto one = [&](Split split, int64_t consumed, double& result) {
    if (!data_.has(split) || run_.summary.ending != Ending::finished) return;
    if (const auto loss = evaluate(run_, data_, split, consumed)) {
      result = *loss;
    } else {
      stop();
    }
  };
  one(kValid, samples_evaluated(run_, run_.length.iterations / train.eval_interval), run_.summary.validation_loss);
  one(kTest, 0, run_.summary.test_loss);
}

RunSummary Job::end() {
  stream_.reset();
  if (trace_) trace_->finish();
  RunSummary& summary = run_.summary;
  if (summary.ending == Ending::finished) evaluate_at_end();
  run_.timers.measure("save-checkpoint", 0, [&] { saves_->finish(); });
  if (summary.ending == Ending::finished) saves_->export_last();
  summary.iteration = run_.position.iteration;
  summary.consumed_samples = run_.position.consumed_train_samples;
  return summary;
}

RunSummary Job::evaluate_only() {
  load_start(run_, nullptr);
  if (run_.first_rank()) run_.metrics.emplace(run_.config().train, run_.disk(), *run_.environment.log);
  MPX_CHECK(data_.has(kValid) || data_.has(kTest), "data",
            "neither the validation nor the test split has samples; give them a share in data.split");
  RunSummary& summary = run_.summary;
  if (data_.has(kValid)) summary.validation_loss = evaluate(run_, data_, kValid, 0).value_or(-1);
  if (data_.has(kTest)) summary.test_loss = evaluate(run_, data_, kTest, 0).value_or(-1);
  summary.iteration = run_.position.iteration;
  return summary;
}

}  // namespace

RunSummary run_training(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
                        const TrainerEnvironment& environment) {
  if (config.train.skip_train) return run_evaluation(config, world, tokenizer, environment);
  std::optional<checkpoint::FolderLock> lock;
  if (world.rank() == 0) {
    check_machine(config.train);
    check_save_folder(config, *environment.disk);
    // Runs first, so that a wrong path is reported at the start and not at the first save.
    if (!config.checkpoint.save.empty()) lock.emplace(*environment.disk, config.checkpoint.save);
  }
  return Job(config, world, tokenizer, environment, false).train(tokenizer.eod);
}

RunSummary run_evaluation(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
                          const TrainerEnvironment& environment) {
  return Job(config, world, tokenizer, environment, true).evaluate_only();
}

}  // namespace metroplex::run
