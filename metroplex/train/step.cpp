#include "train/step.h"

#include <ATen/ops/zeros.h>

#include <cmath>

#include "base/error.h"
#include "comm/collectives.h"
#include "optim/clip.h"

namespace metroplex::train {
namespace {

double counted_tokens(const nn::Microbatch& batch) { return batch.loss_mask.sum(at::kDouble).item<double>(); }

// The factor of each microbatch's summed loss in the loss of the step: per-microbatch means, averaged; or, per token,
// 1 (the division by all tokens follows when they have been counted).
std::vector<double> loss_factors(const std::vector<nn::Microbatch>& batches, bool per_token) {
  std::vector<double> factors;
  for (const nn::Microbatch& batch : batches) {
    factors.push_back(per_token ? 1.0
                                : 1.0 / (std::max(counted_tokens(batch), 1.0) * static_cast<double>(batches.size())));
  }
  return factors;
}

// What each rank adds to the sums over the world.
struct Totals {
  double loss = 0, weight = 0, tokens = 0, stop = 0;
};

Totals reduce_totals(const Totals& mine, const comm::Group& world) {
  at::Tensor t = at::zeros({4}, at::kDouble);
  double* v = t.mutable_data_ptr<double>();
  v[0] = mine.loss;
  v[1] = mine.weight;
  v[2] = mine.tokens;
  v[3] = mine.stop;
  comm::all_reduce(t, world);
  return {v[0], v[1], v[2], v[3]};
}

// Only the last stage has losses; of its tensor-parallel ranks, which hold the same, the first one counts.
Totals own_totals(Assembly& a, const std::vector<at::Tensor>& losses, const std::vector<nn::Microbatch>& batches,
                  bool per_token) {
  Totals totals;
  if (!a.last_stage() || !a.groups().tp.first()) return totals;
  for (size_t m = 0; m < losses.size(); ++m) {
    const double loss = losses[m].item<double>(), tokens = counted_tokens(batches[m]);
    totals.tokens += tokens;
    totals.loss += per_token ? loss : loss / std::max(tokens, 1.0);
    totals.weight += per_token ? tokens : 1.0;
  }
  return totals;
}

void check_losses(Assembly& a, const std::vector<at::Tensor>& losses, int64_t iteration) {
  if (!a.config.train.check_for_nan_in_loss) return;
  for (size_t m = 0; m < losses.size(); ++m) {
    const double loss = losses[m].item<double>();
    MPX_CHECK(
        std::isfinite(loss), "numerics", "the loss is ", loss, " at iteration ", iteration, ", microbatch ", m,
        ", on rank ", a.world->rank(), " (", a.world->grid().describe(a.world->rank()),
        "); nothing was updated. Lower optim.lr, check the data of this step, or resume from an earlier checkpoint");
  }
}

// Gradients of parameters that several ranks hold in part: norms under sequence parallelism, the tied embedding.
void reduce_shared_gradients(Assembly& a) {
  for (nn::Param* param : a.params) {
    if (param->partial_grad_over_tp) comm::all_reduce(param->main_grad, a.groups().tp);
    if (param->tied) comm::all_reduce(param->main_grad, a.groups().embedding);
  }
}

}  // namespace

StepOutcome train_step(Assembly& a, const StepInput& input) {
  const bool per_token = a.config.train.calculate_per_token_loss;
  const auto& batches = input.batches;
  a.gradients->begin_step(static_cast<int64_t>(batches.size()));
  const auto losses = a.executor->run(a.table(static_cast<int>(batches.size()), false), batches,
                                      loss_factors(batches, per_token), a.border(batches.at(0)));
  check_losses(a, losses, input.iteration);
  a.gradients->finish();
  reduce_shared_gradients(a);

  Totals mine = own_totals(a, losses, batches, per_token);
  mine.stop = input.stop;
  const Totals totals = reduce_totals(mine, a.groups().world);
  const double gradient_factor = per_token ? 1.0 / std::max(totals.tokens, 1.0) : 1.0;

  const optim::GradientStats stats =
      optim::gradient_stats(a.params, a.groups().tp, a.groups().model_parallel, a.config.train.log_num_zeros_in_grad);
  StepOutcome outcome;
  outcome.loss = totals.weight > 0 ? totals.loss / totals.weight : 0.0;
  outcome.grad_norm = stats.norm * gradient_factor;
  outcome.num_zeros = stats.num_zeros;
  outcome.tokens = totals.tokens;
  outcome.stop = totals.stop > 0;
  if (a.config.train.check_for_nan_in_loss) {
    MPX_CHECK(std::isfinite(outcome.grad_norm), "numerics", "the gradient norm is ", outcome.grad_norm,
              " at iteration ", input.iteration, " (seen on rank ", a.world->rank(),
              "); nothing was updated. Lower optim.lr or resume from an earlier checkpoint");
  }
  if (input.on_gradients) input.on_gradients();
  optim::StepArgs args;
  args.lr = outcome.lr = a.schedule->lr(input.consumed_samples);
  args.weight_decay = a.schedule->weight_decay(input.consumed_samples);
  const double clip =
      a.config.optim.clip_grad > 0 ? optim::clip_coefficient(outcome.grad_norm, a.config.optim.clip_grad) : 1.0;
  args.grad_factor = clip * gradient_factor;
  a.optimizer->step(args);
  return outcome;
}

LossSum evaluate_step(Assembly& a, const std::vector<nn::Microbatch>& batches) {
  const bool per_token = a.config.train.calculate_per_token_loss;
  const auto losses =
      a.executor->run(a.table(static_cast<int>(batches.size()), true), batches, {}, a.border(batches.at(0)));
  const Totals totals = reduce_totals(own_totals(a, losses, batches, per_token), a.groups().world);
  return {totals.loss, totals.weight};
}

}  // namespace metroplex::train
