#include "run/step_reports.h"

#include <algorithm>

#include "base/error.h"
#include "config/derived.h"
#include "forecast/dry_run.h"
#include "forecast/graph_report.h"
#include "optim/clip.h"
#include "plan/model_flops.h"
#include "step/stage_loads.h"

namespace metroplex::run {

static double seconds_since(StepReports::Clock::time_point start) {
  return std::chrono::duration<double>(StepReports::Clock::now() - start).count();
}

StepReports::StepReports(RunContext& run, std::unique_ptr<device::MemoryMeter> meter)
    : run_(run), meter_(std::move(meter)), first_iteration_(run.position.iteration) {
  const step::Assembly& assembly = *run.assembly;
  if (step::needs_expert_loads(run.config()))
    experts_.emplace(assembly.process, assembly.model, run.disk(), *run.environment.log);
  if (run.config().train.log_slowest_rank && run.world().size() > 1) {
    if (run.world().device().is_cpu()) rank_timer_.emplace(*run.recorder);
    else run.warn("train.log_slowest_rank = true: ranks on GPUs are not compared; remove it");
  }
  if (!run.config().train.machine.empty()) times_.emplace(run);
  interval_.begin();
  describe_run();
}

void StepReports::describe_run() {
  if (!run_.metrics || run_.config().train.metrics_file.empty()) return;
  run_.metrics->describe(base::concat("{\"run\": {\"version\": 1, \"iteration\": ", run_.position.iteration,
                                      ", \"world_size\": ", run_.world().size(), ", \"device\": \"",
                                      run_.world().device().is_cpu() ? "cpu" : "cuda",
                                      "\", \"config\": ", forecast::config_json(run_.config()), "}}"));
}

void StepReports::describe_memory(const forecast::MeasuredMemory& measured, int64_t num_microbatches) {
  if (!run_.metrics || run_.config().train.metrics_file.empty()) return;
  const replay::MemoryPrediction predicted = forecast::predicted_memory(run_.assembly->process, num_microbatches);
  run_.metrics->describe(base::concat("{\"memory\": {\"iteration\": ", run_.position.iteration + 1, ", \"rank\": 0, ",
                                      "\"predicted\": ", forecast::memory_json(predicted.use, predicted.peak),
                                      ", \"measured\": ", forecast::memory_json(measured.use, measured.peak), "}}"));
}

void StepReports::begin_step() {
  step_start_ = Clock::now();
  if (rank_timer_) rank_timer_->begin_step();
}

double StepReports::seconds_of_run() const { return seconds_since(run_start_); }

bool StepReports::measure_memory() {
  if (!meter_ || run_.position.iteration != first_iteration_ + 1) return false;
  memory_ = std::make_unique<forecast::MemoryReport>(*run_.assembly, *meter_);
  memory_->begin_step();
  return true;
}

bool StepReports::measure_rounding() {
  const int64_t interval = run_.config().train.log_rounding_interval;
  const auto& meter = run_.assembly->model.rounding_meter;
  if (!meter || interval == 0 || (run_.position.iteration + 1) % interval != 0) return false;
  meter->start();
  return true;
}

void StepReports::begin_computation() {
  if (times_) times_->timer().begin_step();
}

void StepReports::end_computation(size_t num_microbatches) {
  if (times_) times_->add(times_->timer().end_step(), static_cast<int64_t>(num_microbatches));
}

void StepReports::memory_and_graphs(size_t num_microbatches) {
  const step::Assembly& assembly = *run_.assembly;
  const auto count = static_cast<int64_t>(num_microbatches);
  if (memory_) {
    const forecast::MeasuredMemory measured = memory_->end_step();
    memory_.reset();
    meter_.reset();
    for (const std::string& line : forecast::memory_lines(assembly.process, measured, count)) run_.say(line);
    describe_memory(measured, count);
  }
  if (!assembly.process.graph_device || forecast::captured_graphs(assembly.graphs) == reported_graphs_) return;
  reported_graphs_ = forecast::captured_graphs(assembly.graphs);
  for (const std::string& line : forecast::graph_lines(assembly.process, assembly.graphs, count)) run_.say(line);
}

double StepReports::tflops_per_rank(double seconds, int64_t global_batch_size) const {
  const step::ProcessContext& process = run_.assembly->process;
  const config::Config& config = process.config;
  plan::StepTokens tokens;
  tokens.batch_size = global_batch_size;
  const int64_t vocab =
      config::padded_vocab_size(process.vocab_size, config.model.make_vocab_size_divisible_by, config.parallel.tp());
  return plan::step_flops(plan::model_shape(config, vocab), tokens) / (seconds * 1e12 * process.world->size());
}

void StepReports::step(const step::StepOutcome& outcome, int64_t global_batch_size) {
  const config::Config& config = run_.config();
  if (config.precision.check_for_large_grads && norms_.is_outlier(outcome.grad_norm)) {
    run_.warn(base::concat("iteration ", run_.position.iteration, ": the gradient norm ",
                           std::to_string(outcome.grad_norm), " is more than ", LargestNorm::kFactor,
                           " times the largest one so far"));
  }
  last_.outcome = outcome;
  last_.outcome.terms = normalized_terms(config.model, outcome.terms);
  last_.iteration = run_.position.iteration;
  last_.consumed_samples = run_.position.consumed_train_samples;
  last_.global_batch_size = global_batch_size;
  interval_.add(last_.outcome, global_batch_size * config.train.seq_length);
  last_.seconds = seconds_since(step_start_);
  last_.tflops_per_rank = tflops_per_rank(last_.seconds, global_batch_size);
  last_.tokens_per_second = static_cast<double>(global_batch_size * config.train.seq_length) / last_.seconds;
  if (experts_) last_.experts = experts_->after_step(last_.iteration);
  last_.rounding.clear();
  if (const auto& meter = run_.assembly->model.rounding_meter; meter && meter->measures()) {
    last_.rounding = step::reduce_rounding(run_.assembly->process, run_.assembly->model);
    meter->stop();
  }
  if (config.train.log_params_norm)
    last_.params_norm = optim::params_norm(step::param_norm_parts(run_.assembly->process, run_.assembly->model));
  if (run_.metrics) run_.metrics->step(last_);
  if (rank_timer_) rank_timer_->end_step();
}

void StepReports::iteration_line() {
  IterationMetrics m = interval_.means();  // before the timers' collective, which would count as time per iteration
  const std::string times =
      run_.config().train.timing_log_level > 0 ? run_.timers.report(interval_.steps(), run_.groups().world) : "";
  if (run_.metrics) {
    m.last = last_;
    m.train_iters = run_.length.iterations;
    m.tflops_per_rank = tflops_per_rank(m.elapsed_ms_per_iteration / 1000, last_.global_batch_size);
    const double per_step =
        seconds_of_run() / static_cast<double>(std::max<int64_t>(1, last_.iteration - first_iteration_));
    m.remaining_seconds = per_step * static_cast<double>(m.train_iters - last_.iteration);
    run_.metrics->iteration(m);
    if (!times.empty()) run_.environment.log->info(times);
  }
  if (rank_timer_) {
    const std::optional<SlowestRank> slowest = rank_timer_->report(run_.world(), last_.iteration);
    if (slowest && run_.metrics) run_.metrics->slowest(*slowest);
  }
  if (times_) times_->report(last_.iteration);
  interval_.begin();
}

}  // namespace metroplex::run
