#include "run/trainer.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "checkpoint/folder_lock.h"
#include "config/experts.h"
#include "device/device.h"
#include "files/expert_trace.h"
#include "files/file_system.h"
#include "moe/grouped_library.h"
#include "optim/clip.h"
#include "plan/microbatches.h"
#include "plan/model_flops.h"
#include "run/batches_ahead.h"
#include "run/expert_loads.h"
#include "forecast/graph_report.h"
#include "run/intervals.h"
#include "forecast/memory_report.h"
#include "run/run_data.h"
#include "run/run_folders.h"
#include "step/run_length.h"
#include "run/run_lines.h"
#include "run/run_saves.h"
#include "run/state.h"
#include "step/stage_loads.h"
#include "step/step.h"

namespace metroplex::run {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Job {
 public:
  Job(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
      const TrainerEnvironment& environment, bool forward_only);
  step::Assembly& assembly() { return *a_; }
  // Logs the run, loads the checkpoint and opens the output files.
  void begin_training();
  bool more() const { return has_step_after(position_); }
  // Returns the next microbatches and the other inputs of a step; valid until after_step.
  step::StepInput next_step();
  // Fetches the microbatches of the following step, before the outcome of the current step is read.
  void fetch_ahead();
  // Counts and reports the step, then logs, saves and evaluates as due. Returns true if the run ends here.
  bool after_step(const step::StepOutcome& outcome);
  RunSummary end_training();
  RunSummary evaluate_only();

 private:
  bool has_step_after(const Position& position) const {
    return step::has_more_steps(a_->config.train, microbatches_, position.iteration, position.consumed_train_samples);
  }
  std::optional<double> evaluate(Split split, int64_t consumed);
  std::optional<double> evaluate_set(Split split, size_t set, int64_t consumed);
  bool reads_whole_set(Split split) const { return split == kValid && a_->config.train.full_validation; }
  void evaluate_at_end();
  void stop_run();
  // Over all data-parallel ranks.
  int64_t samples_of_microbatch() const { return a_->config.train.micro_batch_size * a_->groups().dp.size(); }
  // Per rank. Rounds down a batch size that is not a multiple, as training does (decrease_batch_size_if_needed).
  int64_t evaluated_microbatches() const {
    return std::max<int64_t>(1, length_.eval_batch_size / samples_of_microbatch());
  }
  int64_t samples_evaluated(int64_t times) const {
    return times * a_->config.train.eval_iters * evaluated_microbatches() * samples_of_microbatch();
  }
  void count(const step::StepOutcome& outcome);
  bool run_due_actions(const step::StepOutcome& outcome);
  void report_memory(size_t num_microbatches);
  void report_graphs(size_t num_microbatches);
  void load();
  void begin_from_weights();
  void open_outputs();
  // `last`: final save of the run.
  void save(bool last);
  void report_step(const step::StepOutcome& outcome, double seconds);
  void log_interval(const step::StepOutcome& last);
  double tflops_per_rank(double seconds) const;
  int64_t padded_vocab() const {
    return config::padded_vocab_size(a_->vocab_size, a_->config.model.make_vocab_size_divisible_by,
                                     a_->config.parallel.tp());
  }
  void say(const std::string& line) const {
    if (a_->world->rank() == 0) environment_.log->info(line);
  }

  void warn(const std::string& line) const {
    if (a_->world->rank() == 0) environment_.log->warn(line);
  }

  TrainerEnvironment environment_;
  std::unique_ptr<device::MemoryMeter>
      meter_;  // constructed before its tensors; reset after the second step's report
  std::unique_ptr<step::Assembly> a_;
  std::unique_ptr<forecast::MemoryReport> memory_;
  std::optional<Metrics> metrics_;  // rank 0
  std::optional<ExpertLoads> experts_;
  step::Timers timers_;
  plan::MicrobatchSchedule microbatches_;
  Position position_;
  int64_t eod_ = -1;                                 // TokenizerFacts::eod
  std::string past_metrics_file_, past_trace_file_;  // of the resumed run
  RunSummary summary_;
  step::RunLength length_;
  RunData data_;
  std::optional<step::BatchStream> batches_;  // of training
  BatchPrefetcher prefetcher_{[this](const RunData::BatchRequest& request) {
    return timers_.measure("batch-generator", 1, [&] { return data_.next(*batches_, request); });
  }};
  std::vector<nn::Microbatch> micro_;  // of the current step
  Clock::time_point step_start_;
  int64_t global_batch_size_ = 0;
  int64_t reported_graphs_ = 0;
  double params_norm_ = -1;  // of the last step, if computed
  Interval interval_;        // since the last iteration line
  LargestNorm norms_;
  Clock::time_point run_start_ = Clock::now();
  int64_t first_iteration_ = 0;
  std::optional<RunSaves> saves_;
};

device::MemoryMeter::Of meter_kind(const comm::World& world) {
  return world.device().is_cpu() ? device::MemoryMeter::Of::host : device::MemoryMeter::Of::gpu;
}

bool has_load_patterns(const config::Config& config) {
  return !config.checkpoint.load_only.empty() || !config.checkpoint.load_except.empty();
}

Job::Job(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
         const TrainerEnvironment& environment, bool forward_only)
    : environment_(environment),
      meter_(!forward_only && config.memory.log_memory ? std::make_unique<device::MemoryMeter>(meter_kind(world))
                                                       : nullptr),
      a_(assemble(config, world, tokenizer.vocab_size, forward_only, models::build_stage, environment.disk.get(),
                  config.model.from.empty() || has_load_patterns(config) ? step::InitialValues::sampled
                                                                         : step::InitialValues::loaded)),
      timers_(config.train.timing_log_level, world.device().is_cpu() ? nullptr : device::synchronize),
      microbatches_(step::microbatch_schedule(config, world.groups().dp.size())),
      length_(step::run_length(config, microbatches_)),
      data_(*a_, length_, tokenizer, forward_only, environment.disk) {
  position_.tokenizer = tokenizer.files;
  eod_ = tokenizer.eod;
  position_.train_order = data_.train_order();
  if (a_->optimizer) time_actions(*a_, timers_);
}

// Returns the mean loss over the datasets of the split; nullopt if a stop was requested during evaluation.
// `consumed`: samples that earlier evaluations read from each dataset.
std::optional<double> Job::evaluate(Split split, int64_t consumed) {
  double sum = 0;
  for (size_t set = 0; set < data_.num_sets(split); ++set) {
    const auto loss = evaluate_set(split, set, reads_whole_set(split) ? 0 : consumed);
    if (!loss) return std::nullopt;
    sum += *loss;
  }
  return sum / static_cast<double>(data_.num_sets(split));
}

std::optional<double> Job::evaluate_set(Split split, size_t set, int64_t consumed) {
  // Reads only whole microbatches of all data-parallel ranks.
  int64_t left = reads_whole_set(split) ? data_.num_samples(split, set) / samples_of_microbatch()
                                        : a_->config.train.eval_iters * evaluated_microbatches();
  MPX_CHECK(left > 0, "data", "the ", data_.name(split, set), " set has ", data_.num_samples(split, set),
            " samples, fewer than one microbatch of all data-parallel ranks (", samples_of_microbatch(),
            "); give more data or fewer ranks");
  if (const int64_t rest = data_.num_samples(split, set) % samples_of_microbatch();
      reads_whole_set(split) && rest > 0) {
    warn(base::concat(data_.name(split, set), " set: ", rest, " of ", data_.num_samples(split, set),
                      " samples do not fill a microbatch on all data-parallel ranks and are not evaluated"));
  }
  step::BatchStream batches = data_.stream(split, consumed, set);
  step::LossSum sum;
  for (int64_t first = consumed; left > 0;) {
    const int64_t count = std::min(left, evaluated_microbatches());
    auto micro = data_.next(batches, {count, first, position_.iteration, split});
    first += count * samples_of_microbatch();
    left -= count;
    for (nn::Microbatch& batch : micro) batch.training = false;
    const bool should_stop = environment_.stop_requested && environment_.stop_requested();
    const step::LossSum part = timers_.measure("evaluate", 0, [&] { return evaluate_step(*a_, micro, should_stop); });
    if (part.stop) return std::nullopt;
    sum.loss += part.loss;
    sum.weight += part.weight;
  }
  if (metrics_)
    metrics_->evaluation({position_.iteration, data_.name(split, set), sum.mean(), position_.consumed_train_samples});
  return sum.mean();
}

void Job::begin_from_weights() {
  const std::string& directory = a_->config.model.from;
  if (directory.empty()) return;
  const std::string skipped_tensors =
      timers_.measure("load-checkpoint", 0, [&] { return load_from_directory(*a_, *environment_.disk); });
  say(" started from the weights of " + directory);
  if (!skipped_tensors.empty()) say(" " + skipped_tensors);
}

void Job::load() {
  const std::string& directory = a_->config.checkpoint.load;
  if (directory.empty()) return begin_from_weights();
  const LoadOutcome outcome = timers_.measure(
      "load-checkpoint", 0, [&] { return load_state(*a_, directory, *environment_.disk, position_); });
  if (!outcome.notes.empty()) warn(outcome.notes);
  if (!outcome.loaded) {
    const std::string line = "no checkpoint in " + directory + ": starting from scratch";
    same_folder(directory, a_->config.checkpoint.save, *environment_.disk) ? say(" " + line) : warn(line);
    return begin_from_weights();
  }
  if (!a_->config.checkpoint.finetune) {
    position_ = outcome.position;
    past_metrics_file_ = outcome.metrics_file;
    past_trace_file_ = outcome.expert_trace_file;
  }
  position_.checkpoint = outcome.path;
  if (saves_ && resumes_in_place(a_->config.checkpoint, *environment_.disk) && !a_->config.checkpoint.finetune)
    saves_->mark_loaded();
  if (!outcome.skipped_tensors.empty()) say(" " + outcome.skipped_tensors);
  if (!outcome.later_branch.empty()) say(" " + outcome.later_branch);
  say(" loaded checkpoint " + outcome.path +
      (a_->config.checkpoint.finetune ? " (weights only)" : " at iteration " + std::to_string(position_.iteration)));
}

// A resumed run appends to the metrics and trace files of the run that it resumes. Files of any other run are
// renamed.
void Job::open_outputs() {
  const config::Train& train = a_->config.train;
  const auto move_foreign_file = [this](const char* key, const std::string& path, const std::string& past) {
    const std::string aside = path == past ? "" : move_aside(path, *environment_.disk);
    if (!aside.empty()) say(base::concat(" ", key, " = ", path, " belongs to another run; moved to ", aside));
  };
  if (a_->world->rank() == 0) {
    if (!train.expert_trace_file.empty()) files::check_place_of_trace(*environment_.disk, train.expert_trace_file);
    check_metrics_file(*environment_.disk, train.metrics_file);
    move_foreign_file("train.metrics_file", train.metrics_file, past_metrics_file_);
    move_foreign_file("train.expert_trace_file", train.expert_trace_file, past_trace_file_);
    metrics_.emplace(train, *environment_.disk, *environment_.log);
  }
  if (step::needs_expert_loads(a_->config)) experts_.emplace(*a_, *environment_.disk, *environment_.log);
}

void Job::save(bool last) {
  timers_.measure("save-checkpoint", 0, [&] { saves_->save(last); });
}

double Job::tflops_per_rank(double seconds) const {
  plan::StepTokens tokens;
  tokens.batch_size = global_batch_size_;
  const double flops = plan::step_flops(plan::model_shape(a_->config, padded_vocab()), tokens);
  return flops / (seconds * 1e12 * a_->world->size());
}

void Job::report_step(const step::StepOutcome& outcome, double seconds) {
  const std::vector<ExpertMetrics> experts =
      experts_ ? experts_->after_step(position_.iteration) : std::vector<ExpertMetrics>{};
  if (a_->config.train.log_params_norm) params_norm_ = optim::params_norm(a_->norm_parts());
  if (!metrics_) return;
  StepMetrics m;
  m.iteration = position_.iteration;
  m.consumed_samples = position_.consumed_train_samples;
  m.updated = outcome.updated;
  m.lm_loss = outcome.loss;
  m.learning_rate = outcome.lr;
  m.grad_norm = outcome.grad_norm;
  m.loss_scale = outcome.loss_scale;
  m.global_batch_size = global_batch_size_;
  m.seconds = seconds;
  m.tflops_per_rank = tflops_per_rank(seconds);
  m.tokens_per_second = static_cast<double>(global_batch_size_ * a_->config.train.seq_length) / seconds;
  m.num_zeros = outcome.num_zeros;
  m.params_norm = params_norm_;
  m.terms = normalized_terms(a_->config.model, outcome.terms);
  m.experts = experts;
  metrics_->step(m);
}

void Job::log_interval(const step::StepOutcome& last) {
  IterationMetrics m;
  interval_.describe(m);  // before the timers' collective, which would count as time per iteration
  const std::string times =
      a_->config.train.timing_log_level > 0 ? timers_.report(interval_.steps(), a_->groups().world) : "";
  if (metrics_) {
    m.iteration = position_.iteration;
    m.train_iters = length_.iterations;
    m.consumed_samples = position_.consumed_train_samples;
    m.global_batch_size = global_batch_size_;
    m.tflops_per_rank = tflops_per_rank(m.elapsed_ms_per_iteration / 1000);
    m.learning_rate = last.lr;
    m.loss_scale = last.loss_scale;
    m.grad_norm = last.grad_norm;
    m.num_zeros = last.num_zeros;
    m.params_norm = params_norm_;
    const double per_step =
        seconds_since(run_start_) / static_cast<double>(std::max<int64_t>(1, position_.iteration - first_iteration_));
    m.remaining_seconds = per_step * static_cast<double>(length_.iterations - position_.iteration);
    metrics_->iteration(m);
    if (!times.empty()) environment_.log->info(times);
  }
  interval_.begin();
}

step::StepInput Job::next_step() {
  step_start_ = Clock::now();
  const config::Train& train = a_->config.train;
  const plan::MicrobatchCount due = microbatches_.at(position_.consumed_train_samples);
  global_batch_size_ = due.running_global_batch_size;
  micro_ = prefetcher_.take({due.num_microbatches, position_.consumed_train_samples, position_.iteration, kTrain});
  const bool should_stop = environment_.stop_requested && environment_.stop_requested();
  const bool out_of_time =
      train.exit_duration_in_mins > 0 && seconds_since(run_start_) > 60 * train.exit_duration_in_mins;
  const bool second = position_.iteration == first_iteration_ + 1;
  if (meter_ && second) {
    memory_ = std::make_unique<forecast::MemoryReport>(*a_, *meter_);
    memory_->begin_step();
  }
  const bool is_measured = memory_ != nullptr;
  return {micro_,     position_.iteration + 1, position_.scheduled_samples, should_stop || out_of_time, {}, &timers_,
          is_measured};
}

// Skipped during the memory report, so that it measures the step's own allocations only.
void Job::fetch_ahead() {
  Position next = position_;
  ++next.iteration;
  next.consumed_train_samples += global_batch_size_;
  if (memory_ || !has_step_after(next)) return;
  const int64_t count = microbatches_.at(next.consumed_train_samples).num_microbatches;
  prefetcher_.begin({count, next.consumed_train_samples, next.iteration, kTrain});
}

bool Job::after_step(const step::StepOutcome& outcome) {
  if (memory_) report_memory(micro_.size());
  report_graphs(micro_.size());
  ++position_.iteration;
  position_.consumed_train_samples += global_batch_size_;
  interval_.add(outcome, global_batch_size_ * a_->config.train.seq_length,
                normalized_terms(a_->config.model, outcome.terms));
  count(outcome);
  report_step(outcome, seconds_since(step_start_));
  saves_->poll();
  summary_.last_loss = outcome.loss;
  if (environment_.progress && a_->world->rank() == 0) environment_.progress(position_.iteration, length_.iterations);
  micro_.clear();
  return run_due_actions(outcome);
}

void Job::report_graphs(size_t num_microbatches) {
  if (!a_->graph_device || forecast::captured_graphs(*a_) == reported_graphs_) return;
  reported_graphs_ = forecast::captured_graphs(*a_);
  for (const std::string& line : forecast::graph_lines(*a_, static_cast<int64_t>(num_microbatches))) say(line);
}

void Job::report_memory(size_t num_microbatches) {
  const forecast::MeasuredMemory measured = memory_->end_step();
  memory_.reset();
  meter_.reset();
  for (const std::string& line : memory_lines(*a_, measured, static_cast<int64_t>(num_microbatches))) say(line);
}

// As in Megatron-LM, a skipped step does not advance the schedules.
void Job::count(const step::StepOutcome& outcome) {
  if (!outcome.repeated.empty())
    warn("iteration " + std::to_string(position_.iteration) + " ran twice: " + outcome.repeated);
  if (outcome.updated) {
    position_.scheduled_samples += global_batch_size_;
  } else {
    ++position_.skipped_iterations;
    warn("iteration " + std::to_string(position_.iteration) + " was skipped: " + outcome.skipped);
  }
  if (a_->config.precision.check_for_large_grads && norms_.is_outlier(outcome.grad_norm)) {
    warn("iteration " + std::to_string(position_.iteration) + ": the gradient norm " +
         std::to_string(outcome.grad_norm) + " is more than " + std::to_string(LargestNorm::kFactor) +
         " times the largest one so far");
  }
}

bool Job::run_due_actions(const step::StepOutcome& outcome) {
  const Due due = actions_due(a_->config, microbatches_, position_, outcome.stop);
  if (due.log) log_interval(outcome);
  const Clock::time_point paused = Clock::now();  // saving and evaluating do not count as time per iteration
  if (due.save && !a_->config.checkpoint.save.empty()) save(due.exit_early || !more());
  if (due.evaluate && data_.has(kValid)) {
    const auto loss = evaluate(kValid, samples_evaluated(position_.iteration / a_->config.train.eval_interval - 1));
    if (!loss) {
      stop_run();
      return true;
    }
    summary_.validation_loss = *loss;
  }
  if (due.exit_early) {
    summary_.ending = outcome.stop ? Ending::stopped : Ending::exit_interval;
    return true;
  }
  interval_.exclude(Clock::now() - paused);
  return false;
}

// Ends the run in the middle of an evaluation.
void Job::stop_run() {
  saves_->finish();  // a failed background save is repeated below
  if (!a_->config.checkpoint.save.empty() && !saves_->has_current()) save(true);
  summary_.ending = Ending::stopped;
}

void Job::evaluate_at_end() {
  const config::Train& train = a_->config.train;
  if (train.eval_interval <= 0 || (train.eval_iters <= 0 && !train.full_validation)) return;
  const auto one = [&](Split split, int64_t consumed, double& loss) {
    if (!data_.has(split) || summary_.ending != Ending::finished) return;
    const auto found = evaluate(split, consumed);
    if (found) {
      loss = *found;
    } else {
      stop_run();
    }
  };
  one(kValid, samples_evaluated(length_.iterations / train.eval_interval), summary_.validation_loss);
  one(kTest, 0, summary_.test_loss);
}

// Log line about the experts: dispatcher and grouped GEMM, which the configuration may leave open, and the ECHO
// planner.
std::string format_experts(const step::Assembly& assembly) {
  const config::Model& model = assembly.config.model;
  const int64_t ep = assembly.config.parallel.ep(), ranks = assembly.config.parallel.etp() * ep;
  const std::string replicas = !model.moe_enable_echo
                                   ? std::string()
                                   : "; replica slots: " + std::to_string(config::echo_slots(model, ep)) +
                                         " per rank, planned by " + model.moe_echo_planner.text();
  const bool gpu = assembly.world->target().gpu();
  const int capability = gpu ? device::compute_capability() : 0;
  const int64_t width = config::expert_ffn_width(model) / assembly.config.parallel.etp();
  const auto by = [&](int64_t in, int64_t out) {
    moe::GroupedCase of{gpu, capability, assembly.dtype, in, out, model.moe_enable_echo};
    const std::string few = moe::product_name(of);
    of.rows_of_group = moe::kRowsForJoin;
    const std::string many = moe::product_name(of);
    return few == many ? few : base::concat(many, " from ", moe::kRowsForJoin, " rows per expert, else ", few);
  };
  const std::string fc1 = by(model.hidden_size, model.gated_linear_unit ? 2 * width : width),
                    fc2 = by(width, model.hidden_size), product = fc1 == fc2 ? fc1 : fc1 + " and " + fc2;
  return " experts: " + std::to_string(model.moe_router_topk) + " of " + std::to_string(model.num_moe_experts) +
         " per token, on " + std::to_string(ranks) + " ranks; sent by " +
         config::text_of(config::token_dispatcher(model, ranks)) + ", multiplied by " +
         (model.moe_grouped_gemm ? product : "one product per expert") + replicas;
}

void Job::begin_training() {
  saves_.emplace(*a_, environment_, position_, summary_);
  say(" run " + a_->config.run.name);
  if (a_->world->rank() == 0) {
    for (const std::string& line : run_lines(*a_, length_, *environment_.disk)) say(line);
  }
  if (a_->config.model.has_experts()) say(format_experts(*a_));
  for (const std::string& line : forecast::scope_lines(*a_)) say(line);
  if (a_->world->rank() == 0) {
    for (const std::string& warning : start_warnings(a_->config, eod_, *environment_.disk)) warn(warning);
  }
  load();
  if (a_->world->rank() == 0 && more() && !a_->config.checkpoint.export_hf.empty())
    check_export_target(a_->config, *environment_.disk);
  open_outputs();
  if (!a_->config.checkpoint.save.empty() && a_->world->rank() == 0)
    say(" configuration: " + write_run_config(a_->config, *environment_.disk));
  const config::Train& train = a_->config.train;
  if (train.eval_interval > 0 && !data_.has(kValid)) {
    warn(
        "train.eval_interval is set, but the validation split has no samples: nothing will be evaluated; give it a "
        "share in data.split");
  }
  first_iteration_ = position_.iteration;
  if (!more())
    say(base::concat(" nothing is left to do: ", position_.iteration, " of ", length_.iterations,
                     " iterations are done"));
  run_start_ = Clock::now();
  interval_.begin();
  if (more()) batches_.emplace(data_.stream(kTrain, position_.consumed_train_samples));
}

RunSummary Job::end_training() {
  batches_.reset();
  if (summary_.ending == Ending::finished) evaluate_at_end();
  timers_.measure("save-checkpoint", 0, [&] { saves_->finish(); });
  if (summary_.ending == Ending::finished) saves_->export_last();
  summary_.iteration = position_.iteration;
  summary_.consumed_samples = position_.consumed_train_samples;
  return summary_;
}

RunSummary Job::evaluate_only() {
  load();
  if (a_->world->rank() == 0) metrics_.emplace(a_->config.train, *environment_.disk, *environment_.log);
  MPX_CHECK(data_.has(kValid) || data_.has(kTest), "data",
            "neither the validation nor the test split has samples; give them a share in data.split");
  if (data_.has(kValid)) summary_.validation_loss = evaluate(kValid, 0).value_or(-1);
  if (data_.has(kTest)) summary_.test_loss = evaluate(kTest, 0).value_or(-1);
  summary_.iteration = position_.iteration;
  return summary_;
}

}  // namespace

RunSummary run_training(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
                        const TrainerEnvironment& environment) {
  if (config.train.skip_train) return run_evaluation(config, world, tokenizer, environment);
  std::optional<checkpoint::FolderLock> lock;
  if (world.rank() == 0) {
    check_save_folder(config, *environment.disk);
    // Runs first, so that a wrong path is reported at the start and not at the first save.
    if (!config.checkpoint.save.empty()) lock.emplace(*environment.disk, config.checkpoint.save);
  }
  Job job(config, world, tokenizer, environment, false);
  job.begin_training();
  while (job.more()) {
    const step::StepInput step = job.next_step();
    const step::EnqueuedStep enqueued = enqueue_step(job.assembly(), step);
    job.fetch_ahead();
    if (job.after_step(read_outcome(job.assembly(), step, enqueued))) break;
  }
  return job.end_training();
}

RunSummary run_evaluation(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
                          const TrainerEnvironment& environment) {
  return Job(config, world, tokenizer, environment, true).evaluate_only();
}

}  // namespace metroplex::run
