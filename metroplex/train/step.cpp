#include "train/step.h"

#include "base/error.h"
#include "cuda/host_read.h"
#include "train/step_body.h"
#include "train/step_errors.h"
#include "train/step_graphs.h"
#include "train/step_rules.h"

namespace metroplex::train {
namespace {

namespace kernels = cuda::kernels;

std::string why_skipped(const Assembly& a, const kernels::StepVerdict& verdict) {
  if (a.scaler && verdict.found_inf != 0)
    return base::concat("gradients overflowed at loss scale ", verdict.loss_scale);
  if (verdict.over_limit == 0) return "";
  return base::concat("the gradient norm ", verdict.grad_norm,
                      " is above precision.grad_norm_skip_threshold = ", a.config.precision.grad_norm_skip_threshold);
}

void check_numbers(Assembly& a, const StepInput& input, const StepVector& told) {
  const kernels::StepVerdict& verdict = *told.verdict();
  MPX_ASSERT(verdict.row >= 0 && verdict.row < optim::RateTable::kRows, "the step took row ", verdict.row,
             " of the table of rates");
  const kernels::StepRules rules = rules_of(a);
  if (rules.holds_bad_losses && told.sums()->bad_losses > 0)
    refuse_losses(a, input, told.losses(), told.microbatches());
  if (rules.holds_bad_gradients && verdict.found_inf != 0) refuse_gradients(a, input, a.loss_factors);
}

}  // namespace

void write_rates(Assembly& a, const StepInput& input) {
  int64_t samples = 0;
  for (const nn::Microbatch& batch : input.batches) samples += batch.tokens.size(0) * a.groups().dp.size();
  a.rates.cover(*a.schedule, *a.param_groups, {a.steps, input.scheduled_samples, samples});
}

EnqueuedStep enqueue_step(Assembly& a, const StepInput& input) {
  write_rates(a, input);
  write_step_inputs(a, input.batches, input.stop);
  return {training_body(a, input.batches, {&input.timers, input.on_gradients})};
}

StepOutcome read_outcome(Assembly& a, const StepInput& input, const EnqueuedStep& step) {
  const StepVector told = step.vector.on_host(a.world->target());
  const kernels::StepSums& sums = *told.sums();
  const kernels::StepVerdict& verdict = *told.verdict();
  a.steps = static_cast<int64_t>(verdict.steps);
  check_numbers(a, input, told);
  StepOutcome outcome;
  const auto mean = [&](double sum) { return sums.weight > 0 ? sum / sums.weight : 0.0; };
  outcome.loss = mean(sums.loss);
  for (int64_t i = 0; i < told.num_terms(); ++i)
    outcome.terms[a.loss_terms.names()[static_cast<size_t>(i)]] = mean(told.terms()[i]);
  outcome.lr = verdict.lr;
  outcome.grad_norm = verdict.grad_norm;
  outcome.loss_scale = verdict.loss_scale;
  outcome.updated = verdict.updates != 0;
  outcome.skipped = why_skipped(a, verdict);
  outcome.num_zeros = a.config.train.log_num_zeros_in_grad ? static_cast<int64_t>(verdict.num_zeros) : -1;
  outcome.tokens = sums.tokens;
  outcome.stop = sums.stop > 0;
  return outcome;
}

StepOutcome train_step(Assembly& a, const StepInput& input) {
  const bool graph = a.graphs != nullptr && !input.on_gradients && !input.eager;
  return read_outcome(a, input, graph ? a.graphs->train(input) : enqueue_step(a, input));
}

LossSum evaluate_step(Assembly& a, const std::vector<nn::Microbatch>& batches, bool stop) {
  StepVector vector;
  if (a.graphs != nullptr) {
    vector = a.graphs->evaluate(batches, stop);
  } else {
    write_step_inputs(a, batches, stop);
    vector = evaluation_body(a, batches);
  }
  const StepVector told = vector.on_host(a.world->target());
  const kernels::StepSums& sums = *told.sums();
  return {sums.loss, sums.weight, sums.stop > 0};
}

}  // namespace metroplex::train
