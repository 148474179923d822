#include "train/step.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <sstream>

#include "base/error.h"
#include "comm/collectives.h"
#include "optim/clip.h"

namespace metroplex::train {
namespace {

using NamedSums = std::map<std::string, double>;

// Of the whole sequence.
double counted_tokens(const Assembly& a, const nn::Microbatch& batch) {
  const bool sees_all = a.world->target().host_sees_values() && !batch.rows.defined();
  return sees_all ? batch.loss_mask.sum(at::kDouble).item<double>() : batch.mask_sum;
}

// The one place where the host waits for the losses of a step.
std::vector<double> on_host(const std::vector<at::Tensor>& losses) {
  if (losses.empty()) return {};
  const at::Tensor host = at::stack(losses).to(at::kCPU, at::kDouble);
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

// The factor of each microbatch's summed loss in the loss of the step: per-microbatch means, averaged; or, per token,
// 1 (the division by all tokens follows when they have been counted). Ranks that hold parts of a sequence add up to
// its mean, but are averaged over with the others.
std::vector<double> loss_factors(const Assembly& a, const std::vector<nn::Microbatch>& batches, double loss_scale) {
  const int parts = a.groups().cp.size();
  std::vector<double> factors;
  for (const nn::Microbatch& batch : batches) {
    const double mean = parts / (std::max(counted_tokens(a, batch), 1.0) * static_cast<double>(batches.size()));
    factors.push_back(loss_scale * (a.config.train.calculate_per_token_loss ? 1.0 : mean));
  }
  return factors;
}

// What each rank adds to the sums over the world.
struct Totals {
  double loss = 0, weight = 0, tokens = 0, stop = 0, terms = 0;
};

Totals reduce_totals(const Totals& mine, const comm::World& world) {
  const at::Tensor sums =
      at::tensor({mine.loss, mine.weight, mine.tokens, mine.stop, mine.terms}, at::kDouble).to(world.device());
  comm::all_reduce(sums, world.groups().world);
  const at::Tensor host = sums.cpu();
  const double* v = host.const_data_ptr<double>();
  return {v[0], v[1], v[2], v[3], v[4]};
}

// Only the last stage has losses; of its tensor-parallel ranks, which hold the same, the first one counts. Losses of
// parts of a sequence add up, the sequence counts once.
Totals own_totals(Assembly& a, const std::vector<double>& losses, const std::vector<nn::Microbatch>& batches,
                  bool per_token) {
  Totals totals;
  if (!a.last_stage() || !a.groups().tp.first()) return totals;
  for (size_t m = 0; m < losses.size(); ++m) {
    const double loss = losses[m], tokens = counted_tokens(a, batches[m]);
    totals.loss += per_token ? loss : loss / std::max(tokens, 1.0);
    if (!a.groups().cp.first()) continue;
    totals.tokens += tokens;
    totals.weight += per_token ? tokens : 1.0;
  }
  return totals;
}

// Of the loss terms that this rank's segments reported, summed over its microbatches as the loss is. Tensor-parallel
// ranks hold the same: the first one counts.
NamedSums own_terms(Assembly& a, const std::vector<nn::LossTerms>& terms, const std::vector<nn::Microbatch>& batches,
                    bool per_token) {
  NamedSums sums;
  if (!a.groups().tp.first()) return sums;
  for (size_t m = 0; m < terms.size(); ++m) {
    for (const nn::LossTerm& term : terms[m]) {
      const double sum = term.sum.item<double>();
      sums[term.name] += per_token ? sum : sum / std::max(counted_tokens(a, batches[m]), 1.0);
    }
  }
  return sums;
}

// Over the world, in order of ranks, which know the names of their own stages only.
NamedSums reduce_terms(const NamedSums& mine, const comm::World& world) {
  std::ostringstream text;
  text.precision(17);
  for (const auto& [name, sum] : mine) text << name << '\n' << sum << '\n';
  NamedSums sums;
  for (const std::string& of_rank : comm::all_gather_strings(text.str(), world.groups().world)) {
    std::istringstream lines(of_rank);
    std::string name, sum;
    while (std::getline(lines, name) && std::getline(lines, sum)) sums[name] += std::stod(sum);
  }
  return sums;
}

void check_losses(Assembly& a, const std::vector<double>& losses, int64_t iteration) {
  if (!a.config.train.check_for_nan_in_loss || a.scaler) return;
  for (size_t m = 0; m < losses.size(); ++m) {
    MPX_CHECK(
        std::isfinite(losses[m]), "numerics", "the loss is ", losses[m], " at iteration ", iteration, ", microbatch ",
        m, ", on rank ", a.world->rank(), " (", a.world->grid().describe(a.world->rank()),
        "); nothing was updated. Lower optim.lr, check the data of this step, or resume from an earlier checkpoint");
  }
}

// Gradients of which several ranks, which hold the same slices, have a summand each: norms under sequence
// parallelism, shared parameters.
void reduce_shared_gradients(Assembly& a) {
  for (const distributed::Slice& slice : a.slices) {
    const topology::AxisSet partial = slice.param->placement.partial;
    if (!partial.empty()) comm::all_reduce(slice.gradient, a.groups().over(partial));
  }
  sum_shared_gradients(a.shared, a.slices);
}

pipeline::PipelineOutput forward_backward(Assembly& a, const std::vector<nn::Microbatch>& batches,
                                          const std::vector<double>& factors) {
  const auto count = static_cast<int64_t>(batches.size());
  a.families.begin_step(count);
  for (nn::Buffer* buffer : a.buffers) buffer->pending.zero_();
  return a.executor->run(a.table(static_cast<int>(count), false), batches, factors, a.border(batches.at(0)));
}

void finish_gradients(Assembly& a) {
  a.families.finish_gradients();
  reduce_shared_gradients(a);
}

// Collective. The microbatch that makes the gradients not finite, found by running each alone, or, where an
// interleaved schedule takes no single one, as many copies of it as there were microbatches; -1 if none does it
// again.
int64_t culprit(Assembly& a, const StepInput& input, const std::vector<double>& factors) {
  const size_t copies = a.stages.size() > 1 ? input.batches.size() : 1;
  for (size_t m = 0; m < input.batches.size(); ++m) {
    forward_backward(a, std::vector(copies, input.batches[m]),
                     std::vector(copies, factors[m] / static_cast<double>(copies)));
    finish_gradients(a);
    if (optim::gradient_stats(a.norm_parts()).num_nonfinite > 0) return static_cast<int64_t>(m);
  }
  return -1;
}

// Collective: every rank knows that some gradient is not finite, and those that hold it name it.
void refuse_gradients(Assembly& a, const StepInput& input, const std::vector<double>& factors) {
  const int64_t m = culprit(a, input, factors);
  const distributed::Slice* const found = optim::first_nonfinite(a.slices, a.world->target());
  const std::string mine = found == nullptr ? std::string()
                                            : base::concat(found->param->name, " on rank ", a.world->rank(), " (",
                                                           a.world->grid().describe(a.world->rank()), ")");
  std::string where = "a gradient that the repetition did not show again";
  for (const std::string& text : comm::all_gather_strings(mine, a.groups().world)) {
    if (text.empty()) continue;
    where = text;
    break;
  }
  const std::string batch = m < 0 ? std::string() : base::concat(", microbatch ", m);
  MPX_CHECK(false, "numerics", "the gradient of ", where, " is not finite at iteration ", input.iteration, batch,
            "; nothing was updated. Lower optim.lr, check the data of this step, or resume from an earlier "
            "checkpoint");
}

// Decides from the gradients whether to update; the same on every rank.
void judge(Assembly& a, const StepInput& input, const std::vector<double>& factors, const optim::GradientStats& stats,
           StepOutcome& outcome) {
  const bool found_inf = stats.num_nonfinite > 0 || !std::isfinite(stats.norm);
  const config::Precision& p = a.config.precision;
  if (a.scaler) {
    a.scaler->update(found_inf);
    if (found_inf) outcome.skipped = base::concat("gradients overflowed at loss scale ", outcome.loss_scale);
  } else if (found_inf && p.check_for_nan_in_grad) {
    refuse_gradients(a, input, factors);
  }
  if (!found_inf && outcome.grad_norm > p.grad_norm_skip_threshold) {
    outcome.skipped = base::concat("the gradient norm ", outcome.grad_norm,
                                   " is above precision.grad_norm_skip_threshold = ", p.grad_norm_skip_threshold);
  }
  outcome.updated = outcome.skipped.empty();
}

// Clips and updates. `unscale` takes the loss scale, and per token the number of tokens, out of the gradients.
void update(Assembly& a, const StepInput& input, const StepOutcome& outcome, double unscale, Timers& timers) {
  optim::StepArgs args;
  args.rates = a.param_groups->rates(*a.schedule, input.scheduled_samples);
  const double clip =
      a.config.optim.clip_grad > 0 ? optim::clip_coefficient(outcome.grad_norm, a.config.optim.clip_grad) : 1.0;
  args.grad_factor = clip * unscale;
  timers.measure("optimizer-inner-step", 1, [&] { a.optimizer->step(args); });
  for (nn::Buffer* buffer : a.buffers) buffer->apply(*buffer);
  timers.measure("params-all-gather", 1, [&] { a.families.updated(); });
}

}  // namespace

StepOutcome train_step(Assembly& a, const StepInput& input) {
  Timers untimed(-1);
  Timers& timers = input.timers != nullptr ? *input.timers : untimed;
  const bool per_token = a.config.train.calculate_per_token_loss;
  StepOutcome outcome;
  outcome.loss_scale = a.scaler ? a.scaler->scale() : 1.0;
  const std::vector<double> factors = loss_factors(a, input.batches, outcome.loss_scale);
  std::vector<double> losses;
  NamedSums terms;
  timers.measure("forward-backward", 1, [&] {
    const pipeline::PipelineOutput output = forward_backward(a, input.batches, factors);
    losses = on_host(output.last);
    terms = own_terms(a, output.terms, input.batches, per_token);
  });
  check_losses(a, losses, input.iteration);
  timers.measure("all-grads-sync", 1, [&] { finish_gradients(a); });

  Totals mine = own_totals(a, losses, input.batches, per_token);
  mine.stop = input.stop;
  mine.terms = static_cast<double>(terms.size());
  const Totals totals = reduce_totals(mine, *a.world);
  if (totals.terms > 0) terms = reduce_terms(terms, *a.world);
  const double unscale =
      (per_token ? 1.0 / std::max(totals.tokens, 1.0) : 1.0) * (a.scaler ? a.scaler->inv_scale() : 1.0);
  const optim::GradientStats stats =
      timers.measure("optimizer-clip-main-grad", 1, [&] { return optim::gradient_stats(a.norm_parts()); });
  outcome.loss = totals.weight > 0 ? totals.loss / totals.weight : 0.0;
  for (const auto& [name, sum] : terms) outcome.terms[name] = totals.weight > 0 ? sum / totals.weight : 0.0;
  outcome.grad_norm = stats.norm * unscale;
  outcome.num_zeros = a.config.train.log_num_zeros_in_grad ? stats.num_zeros : -1;
  outcome.tokens = totals.tokens;
  outcome.stop = totals.stop > 0;
  if (input.on_gradients) input.on_gradients(unscale);
  judge(a, input, factors, stats, outcome);

  outcome.lr = a.schedule->lr(input.scheduled_samples);
  if (outcome.updated) update(a, input, outcome, unscale, timers);
  return outcome;
}

LossSum evaluate_step(Assembly& a, const std::vector<nn::Microbatch>& batches, bool stop) {
  const bool per_token = a.config.train.calculate_per_token_loss;
  const std::vector<double> losses = on_host(
      a.executor->run(a.table(static_cast<int>(batches.size()), true), batches, {}, a.border(batches.at(0))).last);
  Totals mine = own_totals(a, losses, batches, per_token);
  mine.stop = stop;
  const Totals totals = reduce_totals(mine, *a.world);
  return {totals.loss, totals.weight, totals.stop > 0};
}

}  // namespace metroplex::train
