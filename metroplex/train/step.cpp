#include "train/step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include "base/error.h"
#include "comm/collectives.h"
#include "cuda/host_read.h"
#include "optim/clip.h"
#include "train/gradients.h"
#include "train/step_errors.h"

namespace metroplex::train {
namespace {

namespace kernels = cuda::kernels;

// What the device reads of the host in this step: it waits for none of it.
void write_ahead(Assembly& a, const StepInput& input) {
  int64_t samples = 0;
  for (const nn::Microbatch& batch : input.batches) samples += batch.tokens.size(0) * a.groups().dp.size();
  a.rates.cover(*a.schedule, *a.param_groups, {a.steps, input.scheduled_samples, samples});
  write_step_inputs(a, input.batches, input.stop);
}

void make_loss_factors(Assembly& a, int64_t microbatches) {
  const at::Tensor tokens = a.step_inputs.narrow(0, 1, microbatches);
  if (!a.loss_factors.defined() || a.loss_factors.numel() != microbatches) a.loss_factors = at::empty_like(tokens);
  const at::Tensor& factors = a.loss_factors;
  const kernels::LossFactorShape shape{microbatches, a.groups().cp.size(), a.config.train.calculate_per_token_loss};
  cuda::launch(a.world->target(), {"loss_factors", {&a.step.tensor(), &tokens}, {&factors}}, kernels::loss_factors,
               kernels::loss_factors_cuda, static_cast<const kernels::StepValues*>(a.step.values()),
               static_cast<const double*>(tokens.const_data_ptr()), static_cast<double*>(factors.mutable_data_ptr()),
               shape);
}

kernels::StepRules rules_of(const Assembly& a) {
  const config::Precision& p = a.config.precision;
  kernels::StepRules rules;
  if (a.scaler) rules.scale = a.scaler->rule();
  rules.per_token = a.config.train.calculate_per_token_loss;
  rules.holds_bad_losses = a.config.train.check_for_nan_in_loss && !a.scaler;
  rules.holds_bad_gradients = p.check_for_nan_in_grad && !a.scaler;
  rules.max_norm = a.config.optim.clip_grad;
  rules.skip_threshold = p.grad_norm_skip_threshold;
  rules.groups = static_cast<int64_t>(a.param_groups->factors().size());
  rules.rows = optim::RateTable::kRows;
  return rules;
}

// Decides from sums and gradients whether to update, and with what; the same on every rank.
void judge(Assembly& a, const StepVector& vector, const at::Tensor& gradient_numbers) {
  const at::Tensor summed = vector.summed(), judged = vector.judged();
  const kernels::JudgePlace place{a.step.values(),
                                  a.step.rates(),
                                  static_cast<const double*>(a.rates.tensor().const_data_ptr()),
                                  vector.sums(),
                                  static_cast<const double*>(gradient_numbers.const_data_ptr()),
                                  vector.verdict()};
  cuda::launch(
      a.world->target(),
      {"judge_step", {&a.step.tensor(), &a.rates.tensor(), &summed, &gradient_numbers}, {&a.step.tensor(), &judged}},
      kernels::judge_step, kernels::judge_step_cuda, rules_of(a), place);
}

// Of the values before the call where the step does not update.
void apply(nn::Buffer& buffer, const at::Tensor& updates) {
  const at::Tensor before = buffer.data.clone();
  buffer.apply(buffer);
  buffer.data.copy_(at::where(updates, buffer.data, before));
}

// All of it reads whether the step updates.
void update(Assembly& a, Timers& timers) {
  timers.measure("optimizer-inner-step", 1, [&] { a.optimizer->step(a.step); });
  if (!a.buffers.empty()) {
    const at::Tensor updates = a.step.value(&kernels::StepValues::updates).to(at::kBool);
    for (nn::Buffer* buffer : a.buffers) apply(*buffer, updates);
  }
  timers.measure("params-all-gather", 1, [&] { a.families.updated(); });
}

// For StepInput::on_gradients: the host waits.
double unscale_on_host(const Assembly& a, const StepVector& vector) {
  return kernels::unscale_of(a.config.train.calculate_per_token_loss,
                             vector.on_host(a.world->target()).sums()->tokens, a.step.read().loss_scale);
}

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

EnqueuedStep enqueue_step(Assembly& a, const StepInput& input) {
  Timers untimed(-1);
  Timers& timers = input.timers != nullptr ? *input.timers : untimed;
  const auto count = static_cast<int64_t>(input.batches.size());
  write_ahead(a, input);
  EnqueuedStep step;
  make_loss_factors(a, count);
  const pipeline::PipelineOutput output =
      timers.measure("forward-backward", 1, [&] { return forward_backward(a, input.batches, a.loss_factors); });
  timers.measure("all-grads-sync", 1, [&] { finish_gradients(a); });
  a.loss_terms.agree(output.terms, a.groups().world);
  step.vector = summed_losses(a, output, count);
  const at::Tensor numbers =
      timers.measure("optimizer-clip-main-grad", 1, [&] { return optim::gradient_numbers(a.norm_parts()); });
  if (input.on_gradients) input.on_gradients(unscale_on_host(a, step.vector));
  judge(a, step.vector, numbers);
  update(a, timers);
  return step;
}

StepOutcome tell_step(Assembly& a, const StepInput& input, const EnqueuedStep& step) {
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

StepOutcome train_step(Assembly& a, const StepInput& input) { return tell_step(a, input, enqueue_step(a, input)); }

LossSum evaluate_step(Assembly& a, const std::vector<nn::Microbatch>& batches, bool stop) {
  write_step_inputs(a, batches, stop);
  const auto count = static_cast<int64_t>(batches.size());
  const std::vector<at::Tensor> losses =
      a.executor->run(a.table(static_cast<int>(count), true), batches, {}, a.border(batches.at(0))).last;
  const StepVector told = summed_losses(a, {losses, {}}, count).on_host(a.world->target());
  const kernels::StepSums& sums = *told.sums();
  return {sums.loss, sums.weight, sums.stop > 0};
}

}  // namespace metroplex::train
