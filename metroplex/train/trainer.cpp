#include "train/trainer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "comm/collectives.h"
#include "cuda/device.h"
#include "data/build.h"
#include "data/sampler.h"
#include "files/file_system.h"
#include "optim/clip.h"
#include "plan/microbatches.h"
#include "sim/flops.h"
#include "train/batch.h"
#include "train/long_work.h"
#include "train/memory_report.h"
#include "train/run_folders.h"
#include "train/run_length.h"
#include "train/state.h"
#include "train/step.h"

namespace metroplex::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

enum Split { kTrain, kValid, kTest };
constexpr const char* kSplitNames[] = {"training", "validation", "test"};

constexpr int kLargeFactor = 10;

// A gradient norm far above all before it.
class LargestNorm {
 public:
  bool unexpectedly_large(double norm) {
    constexpr int kFirst = 100;  // norms that only teach
    const bool large = seen_ >= kFirst && norm > kLargeFactor * largest_;
    if (std::isfinite(norm)) largest_ = std::max(largest_, norm);
    ++seen_;
    return large;
  }

 private:
  double largest_ = 0;
  int64_t seen_ = 0;
};

class Job {
 public:
  Job(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
      const TrainerEnvironment& environment, bool forward_only);
  RunSummary train();
  RunSummary evaluate_only();

 private:
  void build_datasets(const TokenizerFacts& tokenizer, bool forward_only);
  data::SamplerOptions sampler_options(int64_t consumed) const;
  BatchStream stream(Split split, int64_t consumed) const;
  std::vector<nn::Microbatch> next_batches(BatchStream& stream, int64_t count, int64_t first_sample,
                                           const char* what);
  std::optional<double> evaluate(Split split, int64_t consumed);
  void evaluate_at_end();
  void stop_here();
  int64_t samples_evaluated(int64_t times) const {
    return times * a_->config.train.eval_iters * length_.full_batch_size;
  }
  bool more() const;
  StepOutcome step_once(BatchStream& batches);
  void count(const StepOutcome& outcome);
  bool after_step(const StepOutcome& outcome);
  void report_memory(size_t num_microbatches);
  void load();
  void save();
  void report_step(const StepOutcome& outcome, double seconds);
  void log_interval(const StepOutcome& last);
  double tflops_per_rank(double seconds) const;
  int64_t padded_vocab() const {
    return config::padded_vocab_size(a_->vocab_size, a_->config.model.make_vocab_size_divisible_by,
                                     a_->config.parallel.tp());
  }
  bool reader() const { return a_->groups().batch.first(); }
  void say(const std::string& line) const {
    if (a_->world->rank() == 0) environment_.log->info(line);
  }

  void warn(const std::string& line) const {
    if (a_->world->rank() == 0) environment_.log->warn(line);
  }

  TrainerEnvironment environment_;
  std::unique_ptr<cuda::MemoryMeter> meter_;  // ahead of what it measures, until the second step has been reported
  std::unique_ptr<Assembly> a_;
  std::unique_ptr<MemoryReport> memory_;
  std::optional<Metrics> metrics_;  // rank 0
  Timers timers_;
  plan::MicrobatchSchedule microbatches_;
  std::array<std::shared_ptr<const data::Dataset>, 3> datasets_;  // on reading ranks
  std::array<bool, 3> present_{};                                 // on every rank
  Position position_;
  RunSummary summary_;
  RunLength length_;
  int64_t global_batch_size_ = 0;
  // Since the last iteration line.
  double interval_loss_ = 0, interval_tokens_ = 0;
  double params_norm_ = -1;  // of the last step, where it is computed
  int64_t interval_steps_ = 0, interval_updates_ = 0, interval_skipped_ = 0, interval_nan_ = 0;
  LargestNorm norms_;
  Clock::time_point interval_start_ = Clock::now(), run_start_ = Clock::now();
  int64_t first_iteration_ = 0;
  int64_t saved_iteration_ = -1;  // or loaded
};

data::SampleCounts wanted_samples(const config::Config& config, const RunLength& length, bool evaluate_only) {
  data::SampleCountOptions options;
  options.train_iters = length.iterations;
  options.train_samples = length.samples;
  options.global_batch_size = length.full_batch_size;
  options.eval_interval =
      evaluate_only ? std::max<int64_t>(1, config.train.eval_interval) : config.train.eval_interval;
  // Without evaluations in between there are none at the end either: no samples are asked for.
  options.eval_iters = evaluate_only || config.train.eval_interval > 0 ? config.train.eval_iters : 0;
  return data::sample_counts(options);
}

// What a run can go on from, in words.
std::string on_disk(const std::string& folder) {
  try {
    files::PosixFileSystem disk;
    const auto latest = checkpoint::read_latest(disk, folder).name;
    if (!latest) return folder + " holds no checkpoint";
    return folder + " holds " + checkpoint::to_string(*latest) + " as the newest one";
  } catch (const base::Error& error) { return error.what(); }
}

cuda::MemoryMeter::Of meter_of(const comm::World& world) {
  return world.device().is_cpu() ? cuda::MemoryMeter::Of::host : cuda::MemoryMeter::Of::gpu;
}

Job::Job(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
         const TrainerEnvironment& environment, bool forward_only)
    : environment_(environment),
      meter_(!forward_only && config.memory.log_memory ? std::make_unique<cuda::MemoryMeter>(meter_of(world))
                                                       : nullptr),
      a_(assemble(config, world, tokenizer.vocab_size, forward_only)),
      timers_(config.train.timing_log_level, world.device().is_cpu() ? nullptr : cuda::synchronize),
      microbatches_(microbatch_schedule(config, world.groups().dp.size())),
      length_(run_length(config, microbatches_)) {
  a_->tokenizer = tokenizer.files;
  if (world.rank() == 0) metrics_.emplace(config.train, *environment_.log);
  build_datasets(tokenizer, forward_only);
  at::Tensor present = at::zeros({3}, at::kLong);
  for (int split = 0; split < 3; ++split) present[split] = datasets_[split] != nullptr;
  comm::broadcast(present, 0, a_->groups().batch);
  for (int split = 0; split < 3; ++split) present_[split] = present[split].item<int64_t>() != 0;
  if (a_->gradients) {
    a_->executor->set_observer([this](const plan::Action& action, double seconds) {
      timers_.add(plan::action_name(action.kind), 2, seconds);
      if (memory_) memory_->after_action(action);
    });
  }
}

void Job::build_datasets(const TokenizerFacts& tokenizer, bool forward_only) {
  const config::Config& config = a_->config;
  const data::SampleCounts counts = wanted_samples(config, length_, forward_only);
  data::BuildOptions options;
  options.sequence_length = config.train.seq_length;
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.sizes = {counts.train, counts.valid, counts.test};
  options.eod = tokenizer.eod;
  options.vocab_size = tokenizer.vocab_size;
  const auto splits = std::make_shared<data::Splits>();
  do_with_peers(
      [splits, options, data = config.data, reads = reader()] {
        if (reads) *splits = data::build_datasets(data, options);
      },
      *a_->world);
  datasets_ = {splits->train, splits->valid, splits->test};
}

data::SamplerOptions Job::sampler_options(int64_t consumed) const {
  data::SamplerOptions options;
  options.consumed_samples = consumed;
  options.micro_batch_size = a_->config.train.micro_batch_size;
  options.dp_index = a_->groups().dp.index();
  options.dp_size = a_->groups().dp.size();
  options.type = a_->config.data.dataloader_type == config::Dataloader::cyclic ? data::SamplerType::cyclic
                                                                               : data::SamplerType::single;
  options.data_sharding = a_->config.data.data_sharding;
  return options;
}

BatchStream Job::stream(Split split, int64_t consumed) const {
  MPX_CHECK(present_[split], "data", "the ", kSplitNames[split],
            " split has no samples; give it a share in data.split");
  std::unique_ptr<data::Loader> loader;
  if (reader()) {
    const int workers = static_cast<int>(a_->config.data.num_workers),
              ahead = workers > 0 ? std::max(4, 2 * workers) : 0;
    loader = std::make_unique<data::Loader>(datasets_[split], sampler_options(consumed), ahead, std::max(1, workers));
  }
  return {std::move(loader), a_->groups().batch, a_->dtype == at::kDouble ? at::kDouble : at::kFloat,
          a_->world->device(), a_->vocab_size};
}

std::vector<nn::Microbatch> Job::next_batches(BatchStream& stream, int64_t count, int64_t first_sample,
                                              const char* what) {
  const int64_t mbs = a_->config.train.micro_batch_size, dp = a_->groups().dp.size(),
                dp_index = a_->groups().dp.index();
  // The single sampler deals microbatches out to the data-parallel ranks, the cyclic one samples.
  const bool by_sample = a_->config.data.dataloader_type == config::Dataloader::cyclic;
  std::vector<nn::Microbatch> batches;
  for (int64_t m = 0; m < count; ++m) {
    auto batch = by_sample ? stream.next({first_sample + m * mbs * dp + dp_index, dp})
                           : stream.next({first_sample + (m * dp + dp_index) * mbs, 1});
    MPX_CHECK(batch.has_value(), "data", "the ", what, " data ended at sample ", first_sample + m * dp * mbs,
              "; give more data, or fewer iterations");
    batch->step = position_.iteration;
    batches.push_back(std::move(*batch));
  }
  return batches;
}

// Nothing when the run was asked to end meanwhile.
std::optional<double> Job::evaluate(Split split, int64_t consumed) {
  const int64_t count =
      std::max<int64_t>(1, length_.full_batch_size / (a_->config.train.micro_batch_size * a_->groups().dp.size()));
  BatchStream batches = stream(split, consumed);
  LossSum sum;
  for (int64_t i = 0; i < a_->config.train.eval_iters; ++i) {
    auto micro = next_batches(batches, count,
                              consumed + i * count * a_->config.train.micro_batch_size * a_->groups().dp.size(),
                              kSplitNames[split]);
    for (nn::Microbatch& batch : micro) batch.training = false;
    const bool asked = environment_.stop_requested && environment_.stop_requested();
    const LossSum part = timers_.measure("evaluate", 0, [&] { return evaluate_step(*a_, micro, asked); });
    if (part.stop) return std::nullopt;
    sum.loss += part.loss;
    sum.weight += part.weight;
  }
  if (metrics_)
    metrics_->evaluation({position_.iteration, kSplitNames[split], sum.mean(), position_.consumed_train_samples});
  return sum.mean();
}

void Job::load() {
  const std::string& directory = a_->config.checkpoint.load;
  if (directory.empty()) return;
  const LoadOutcome outcome = timers_.measure("load-checkpoint", 0, [&] { return load_state(*a_, directory); });
  if (!outcome.notes.empty()) warn(outcome.notes);
  if (!outcome.loaded) {
    const std::string line = "no checkpoint in " + directory + ": starting from scratch";
    same_folder(directory, a_->config.checkpoint.save) ? say(" " + line) : warn(line);
    return;
  }
  if (!a_->config.checkpoint.finetune) position_ = outcome.position;
  position_.checkpoint = outcome.path;
  if (goes_on_in_place(a_->config.checkpoint) && !a_->config.checkpoint.finetune)
    saved_iteration_ = position_.iteration;
  if (!outcome.branch_left.empty()) say(" " + outcome.branch_left);
  say(" loaded checkpoint " + outcome.path +
      (a_->config.checkpoint.finetune ? " (weights only)" : " at iteration " + std::to_string(position_.iteration)));
}

void Job::save() {
  const SaveOutcome outcome = timers_.measure("save-checkpoint", 0, [&] { return save_state(*a_, position_); });
  summary_.last_save_failed = !outcome.saved;
  if (outcome.saved) {
    summary_.last_checkpoint = position_.checkpoint = outcome.path;
    saved_iteration_ = position_.iteration;
    say(" saved checkpoint " + outcome.path);
    if (!outcome.note.empty()) say(" " + outcome.note);
    if (!outcome.problem.empty()) warn(outcome.problem);
  } else {
    warn("could not save iteration " + std::to_string(position_.iteration) + ": " + outcome.problem +
         "; older checkpoints in checkpoint.save = " + a_->config.checkpoint.save + " are untouched");
    if (a_->world->rank() == 0)
      summary_.on_disk = "iteration " + std::to_string(position_.iteration) +
                         " could not be saved: " + outcome.problem + "; " + on_disk(a_->config.checkpoint.save);
  }
}

double Job::tflops_per_rank(double seconds) const {
  sim::StepTokens tokens;
  tokens.batch_size = global_batch_size_;
  const double flops = sim::step_flops(sim::model_shape(a_->config, padded_vocab()), tokens);
  return flops / (seconds * 1e12 * a_->world->size());
}

void Job::report_step(const StepOutcome& outcome, double seconds) {
  if (a_->config.train.log_params_norm) params_norm_ = optim::params_norm(a_->slices, a_->model_ranks());
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
  metrics_->step(m);
}

void Job::log_interval(const StepOutcome& last) {
  const double elapsed = seconds_since(interval_start_);
  const std::string times =
      a_->config.train.timing_log_level > 0 ? timers_.report(interval_steps_, a_->groups().world) : "";
  if (metrics_) {
    IterationMetrics m;
    m.iteration = position_.iteration;
    m.train_iters = length_.iterations;
    m.consumed_samples = position_.consumed_train_samples;
    m.elapsed_ms_per_iteration = elapsed * 1000 / static_cast<double>(interval_steps_);
    m.global_batch_size = global_batch_size_;
    m.tflops_per_rank = tflops_per_rank(m.elapsed_ms_per_iteration / 1000);
    m.learning_rate = last.lr;
    m.lm_loss = interval_loss_ / static_cast<double>(std::max<int64_t>(1, interval_updates_));
    m.loss_scale = last.loss_scale;
    m.grad_norm = last.grad_norm;
    m.num_zeros = last.num_zeros;
    m.params_norm = params_norm_;
    m.skipped_iterations = interval_skipped_;
    m.nan_iterations = interval_nan_;
    m.tokens_per_second = interval_tokens_ / elapsed;
    const double per_step =
        seconds_since(run_start_) / static_cast<double>(std::max<int64_t>(1, position_.iteration - first_iteration_));
    m.remaining_seconds = per_step * static_cast<double>(length_.iterations - position_.iteration);
    metrics_->iteration(m);
    if (!times.empty()) environment_.log->info(times);
  }
  interval_loss_ = interval_tokens_ = 0;
  interval_steps_ = interval_updates_ = interval_skipped_ = interval_nan_ = 0;
  interval_start_ = Clock::now();
}

bool Job::more() const {
  const config::Train& t = a_->config.train;
  return t.train_samples > 0 ? position_.consumed_train_samples < t.train_samples
                             : position_.iteration < t.train_iters;
}

StepOutcome Job::step_once(BatchStream& batches) {
  const Clock::time_point start = Clock::now();
  const config::Train& t = a_->config.train;
  const plan::MicrobatchCount due = microbatches_.at(position_.consumed_train_samples);
  global_batch_size_ = due.running_global_batch_size;
  const auto micro = timers_.measure("batch-generator", 1, [&] {
    return next_batches(batches, due.num_microbatches, position_.consumed_train_samples, "training");
  });
  const bool asked = environment_.stop_requested && environment_.stop_requested();
  const bool out_of_time = t.exit_duration_in_mins > 0 && seconds_since(run_start_) > 60 * t.exit_duration_in_mins;
  const bool second = position_.iteration == first_iteration_ + 1;
  if (meter_ && second) {
    memory_ = std::make_unique<MemoryReport>(*a_, *meter_);
    memory_->begin_step(micro.at(0));
  }
  const StepOutcome outcome = train_step(
      *a_, {micro, position_.iteration + 1, position_.scheduled_samples, asked || out_of_time, {}, &timers_});
  if (memory_) report_memory(micro.size());
  ++position_.iteration;
  position_.consumed_train_samples += global_batch_size_;
  count(outcome);
  interval_tokens_ += static_cast<double>(global_batch_size_ * t.seq_length);
  ++interval_steps_;
  report_step(outcome, seconds_since(start));
  summary_.last_loss = outcome.loss;
  if (environment_.progress && a_->world->rank() == 0) environment_.progress(position_.iteration, length_.iterations);
  return outcome;
}

void Job::report_memory(size_t num_microbatches) {
  const MeasuredMemory measured = memory_->end_step();
  memory_.reset();
  meter_.reset();
  for (const std::string& line : memory_lines(*a_, measured, static_cast<int64_t>(num_microbatches))) say(line);
}

// As in Megatron-LM, the schedules stand still and the loss does not count where nothing was updated.
void Job::count(const StepOutcome& outcome) {
  if (!std::isfinite(outcome.loss)) ++interval_nan_;
  if (outcome.updated) {
    position_.scheduled_samples += global_batch_size_;
    interval_loss_ += outcome.loss;
    ++interval_updates_;
  } else {
    ++position_.skipped_iterations;
    ++interval_skipped_;
    warn("iteration " + std::to_string(position_.iteration) + " was skipped: " + outcome.skipped);
  }
  if (a_->config.precision.check_for_large_grads && norms_.unexpectedly_large(outcome.grad_norm)) {
    warn("iteration " + std::to_string(position_.iteration) + ": the gradient norm " +
         std::to_string(outcome.grad_norm) + " is more than " + std::to_string(kLargeFactor) +
         " times the largest one so far");
  }
}

// What is due after a step. True when the run ends here.
bool Job::after_step(const StepOutcome& outcome) {
  const config::Train& t = a_->config.train;
  const bool last = !more();
  const bool exit_here = !last && t.exit_interval > 0 && position_.iteration % t.exit_interval == 0;
  if (position_.iteration % t.log_interval == 0 || last || outcome.stop) log_interval(outcome);
  const Clock::time_point paused = Clock::now();  // saving and evaluating do not count as time per iteration
  const int64_t save_interval = a_->config.checkpoint.save_interval;
  const bool save_due =
      (save_interval > 0 && position_.iteration % save_interval == 0) || last || outcome.stop || exit_here;
  if (save_due && !a_->config.checkpoint.save.empty()) save();
  if (!last && (outcome.stop || exit_here)) {
    summary_.ending = outcome.stop ? Ending::stopped : Ending::exit_interval;
    return true;
  }
  if (!last && present_[kValid] && t.eval_interval > 0 && position_.iteration % t.eval_interval == 0) {
    const auto loss = evaluate(kValid, samples_evaluated(position_.iteration / t.eval_interval - 1));
    if (!loss) {
      stop_here();
      return true;
    }
    summary_.validation_loss = *loss;
  }
  interval_start_ += Clock::now() - paused;
  return false;
}

// In the middle of an evaluation.
void Job::stop_here() {
  if (!a_->config.checkpoint.save.empty() && saved_iteration_ != position_.iteration) save();
  summary_.ending = Ending::stopped;
}

void Job::evaluate_at_end() {
  const config::Train& t = a_->config.train;
  if (t.eval_interval <= 0 || t.eval_iters <= 0) return;
  const auto one = [&](Split split, int64_t consumed, double& loss) {
    if (!present_[split] || summary_.ending != Ending::finished) return;
    const auto found = evaluate(split, consumed);
    if (found) {
      loss = *found;
    } else {
      stop_here();
    }
  };
  one(kValid, samples_evaluated(length_.iterations / t.eval_interval), summary_.validation_loss);
  one(kTest, 0, summary_.test_loss);
}

RunSummary Job::train() {
  say(" run " + a_->config.run.name + ": " + std::to_string(a_->world->size()) + " ranks" +
      (a_->world->device().is_cpu() ? ", " : " on GPUs, ") + std::to_string(length_.iterations) + " iterations, " +
      std::to_string(length_.samples) + " samples");
  load();
  if (!a_->config.checkpoint.save.empty() && a_->world->rank() == 0) {
    files::PosixFileSystem().make_directories(
        a_->config.checkpoint.save);  // a wrong path is found before a day has gone by
  }
  const config::Train& t = a_->config.train;
  if (t.eval_interval > 0 && !present_[kValid]) {
    warn(
        "train.eval_interval is set, but the validation split has no samples: nothing will be evaluated; give it a "
        "share in data.split");
  }
  first_iteration_ = position_.iteration;
  interval_start_ = run_start_ = Clock::now();
  if (more()) {
    BatchStream batches = stream(kTrain, position_.consumed_train_samples);
    while (more() && !after_step(step_once(batches))) {}
  }
  if (summary_.ending == Ending::finished) evaluate_at_end();
  summary_.iteration = position_.iteration;
  summary_.consumed_samples = position_.consumed_train_samples;
  return summary_;
}

RunSummary Job::evaluate_only() {
  load();
  MPX_CHECK(present_[kValid] || present_[kTest], "data",
            "neither the validation nor the test split has samples; give them a share in data.split");
  if (present_[kValid]) summary_.validation_loss = evaluate(kValid, 0).value_or(-1);
  if (present_[kTest]) summary_.test_loss = evaluate(kTest, 0).value_or(-1);
  summary_.iteration = position_.iteration;
  return summary_;
}

}  // namespace

RunSummary run_training(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
                        const TrainerEnvironment& environment) {
  if (world.rank() == 0) check_save_folder(config);
  return Job(config, world, tokenizer, environment, false).train();
}

RunSummary run_evaluation(const config::Config& config, const comm::World& world, const TokenizerFacts& tokenizer,
                          const TrainerEnvironment& environment) {
  return Job(config, world, tokenizer, environment, true).evaluate_only();
}

}  // namespace metroplex::train
