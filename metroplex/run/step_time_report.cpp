#include "run/step_time_report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "forecast/step_price.h"
#include "run/gather_values.h"

namespace metroplex::run {
namespace {

constexpr const char* kListener = "step times";

price::Machine read_machine_key(const config::Train& train) {
  try {
    return price::find_machine(train.machine);
  } catch (const base::Error& error) {
    base::throw_error("config", base::concat("train.machine = ", train.machine, ": ", base::message_of(error),
                                             "; metroplex calibrate --output FILE writes a file for this machine"));
  }
}

// Steps with one-time allocations, one with the memory report, and those before and in a capture.
int64_t unsettled_steps(const config::Train& train) {
  const bool captures = train.cuda_graph_impl != config::CudaGraphImpl::none;
  return 2 + (captures ? std::max<int64_t>(1, train.cuda_graph_warmup_steps) : 0);
}

PartDetail part_detail(const RunContext& run) {
  if (run.world().target().gpu()) return PartDetail::step;
  return run.config().train.cuda_graph_impl == config::CudaGraphImpl::full_iteration ? PartDetail::compute
                                                                                     : PartDetail::all;
}

}  // namespace

void check_machine(const config::Train& train) {
  if (!train.machine.empty()) read_machine_key(train);
}

StepTimeReport::StepTimeReport(RunContext& run) : run_(run), timer_(*run.recorder, run.world()) {
  if (run.first_rank()) machine_ = read_machine_key(run.config().train);
  run_.assembly->model.executor->observers().add(
      kListener, [this](const plan::Action& action, double) { timer_.after_action(action); });
}

StepTimeReport::~StepTimeReport() { run_.assembly->model.executor->observers().remove(kListener); }

void StepTimeReport::add(const StepParts& step, int64_t num_microbatches) {
  if (num_microbatches != num_microbatches_) {
    num_microbatches_ = num_microbatches;
    ignored_ = unsettled_steps(run_.config().train);
    steps_ = 0;
    sum_ = {};
  }
  if (ignored_ > 0) {
    --ignored_;
    return;
  }
  ++steps_;
  sum_ += step;
}

// A failed prediction does not end the run.
const replay::StepTime* StepTimeReport::predict(int64_t num_microbatches) {
  const auto [entry, is_new] = predictions_.try_emplace(num_microbatches);
  if (is_new) {
    const step::ProcessContext& process = run_.assembly->process;
    try {
      entry->second = forecast::price_step(
          {process.config, run_.world().size(), 0, process.vocab_size, num_microbatches, run_.world().device()},
          *machine_);
    } catch (const base::Error& error) {
      run_.warn(base::concat("train.machine: the time of a step with ", num_microbatches,
                             " microbatches is not predicted: ", base::message_of(error)));
    }
  }
  return entry->second ? &*entry->second : nullptr;
}

void StepTimeReport::report(int64_t iteration) {
  const std::optional<StepComparison> comparison = compare(iteration);
  if (comparison && run_.metrics) run_.metrics->times(*comparison);
  const std::string text = comparison ? warning(*comparison) : "";
  if (!text.empty()) run_.warn(text);
  comm::barrier(run_.groups().world);  // otherwise the other ranks would wait for rank 0 in their next step
}

std::optional<StepComparison> StepTimeReport::compare(int64_t iteration) {
  const std::vector<StepParts> ranks = gather_values(std::exchange(sum_, {}), run_.groups().world);
  const int64_t steps = std::exchange(steps_, 0);
  if (!run_.first_rank() || steps == 0) return std::nullopt;
  const replay::StepTime* const predicted = predict(num_microbatches_);
  if (predicted == nullptr) return std::nullopt;
  const auto slowest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const StepParts& left, const StepParts& right) { return left.compute() < right.compute(); });
  StepComparison comparison{iteration, steps, static_cast<int>(slowest - ranks.begin()), {}};
  const int stage = run_.world().grid().coordinates(comparison.rank).pp;
  comparison.parts =
      compare_parts(predicted->ranks.at(static_cast<size_t>(stage)), slowest->mean(steps), part_detail(run_));
  return comparison;
}

std::string StepTimeReport::warning(const StepComparison& comparison) {
  const PartTime* const part = find_difference(comparison, machine_->error);
  if (part == nullptr || !named_.insert(part->name).second) return "";
  char numbers[256];
  std::snprintf(
      numbers, sizeof numbers,
      "step %.1f ms, predicted %.1f ms +- %.0f %%; the largest difference has %s: %.1f ms, predicted %.1f ms",
      1000 * comparison.step().measured, 1000 * comparison.step().predicted, 100 * machine_->error,
      part->name.c_str(), 1000 * part->measured, 1000 * part->predicted);
  return base::concat("train.machine = ", run_.config().train.machine, ": iteration ", comparison.iteration,
                      ", rank ", comparison.rank, ": ", numbers,
                      "; run metroplex calibrate on this machine, or find the cause with train.trace_file");
}

}  // namespace metroplex::run
