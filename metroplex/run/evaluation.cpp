#include "run/evaluation.h"

#include <algorithm>

#include "base/error.h"
#include "step/step.h"

namespace metroplex::run {
namespace {

bool reads_whole_set(const RunContext& run, Split split) {
  return split == kValid && run.config().train.full_validation;
}

// Per rank. Rounds down a batch size that is not a multiple, as training does (decrease_batch_size_if_needed).
int64_t evaluated_microbatches(const RunContext& run) {
  return std::max<int64_t>(1, run.length.eval_batch_size / run.samples_of_microbatch());
}

std::optional<double> evaluate_set(RunContext& run, const RunData& data, Split split, size_t set, int64_t consumed) {
  const bool whole = reads_whole_set(run, split);
  // Reads only whole microbatches of all data-parallel ranks.
  int64_t left = whole ? data.num_samples(split, set) / run.samples_of_microbatch()
                       : run.config().train.eval_iters * evaluated_microbatches(run);
  MPX_CHECK(left > 0, "data", "the ", data.name(split, set), " set has ", data.num_samples(split, set),
            " samples, fewer than one microbatch of all data-parallel ranks (", run.samples_of_microbatch(),
            "); give more data or fewer ranks");
  if (const int64_t rest = data.num_samples(split, set) % run.samples_of_microbatch(); whole && rest > 0) {
    run.warn_once(base::concat(data.name(split, set), " set: ", rest, " of ", data.num_samples(split, set),
                               " samples do not fill a microbatch on all data-parallel ranks and are not evaluated"));
  }
  step::BatchStream batches = data.stream(split, consumed, set);
  step::LossSum sum;
  for (int64_t first = consumed; left > 0;) {
    const int64_t count = std::min(left, evaluated_microbatches(run));
    auto micro = data.next(batches, {count, first, run.position.iteration, split});
    first += count * run.samples_of_microbatch();
    left -= count;
    for (nn::Microbatch& batch : micro) batch.training = false;
    const bool should_stop = run.stop_requested();
    const step::LossSum part =
        run.timers.measure("evaluate", 0, [&] { return evaluate_step(*run.assembly, micro, should_stop); });
    if (part.stop) return std::nullopt;
    sum.loss += part.loss;
    sum.weight += part.weight;
  }
  if (run.metrics)
    run.metrics->evaluation(
        {run.position.iteration, data.name(split, set), sum.mean(), run.position.consumed_train_samples});
  return sum.mean();
}

}  // namespace

std::optional<double> evaluate(RunContext& run, const RunData& data, Split split, int64_t consumed) {
  double sum = 0;
  for (size_t set = 0; set < data.num_sets(split); ++set) {
    const auto loss = evaluate_set(run, data, split, set, reads_whole_set(run, split) ? 0 : consumed);
    if (!loss) return std::nullopt;
    sum += *loss;
  }
  return sum / static_cast<double>(data.num_sets(split));
}

int64_t samples_evaluated(const RunContext& run, int64_t evaluations) {
  return evaluations * run.config().train.eval_iters * evaluated_microbatches(run) * run.samples_of_microbatch();
}

}  // namespace metroplex::run
