#include "moe/balance.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "config/experts.h"
#include "nn/wide.h"

namespace metroplex::moe {

using config::AuxLossType;

// Sums over the tokens of this rank, or of all ranks of tp_cp. Shapes are [samples, E], or [1, E] if no loss is per
// sequence; fp64.
struct AuxiliaryLosses::Sums {
  at::Tensor tokens, scores;            // counts; local scores are differentiable
  at::Tensor z;                         // scalar: sum of squared logsumexp; differentiable if local
  at::Tensor mask;                      // scalar: sum of the loss mask
  int64_t num_tokens = 0, samples = 1;  // num_tokens: mean over tp_cp, or their sum
};

AuxiliaryLosses::AuxiliaryLosses(const config::Model& model, const nn::LayerContext& context,
                                 const ExpertContext& experts)
    : z_(model.moe_z_loss_coeff),
      rule_(topk_rule(model)),
      num_experts_(model.num_moe_experts),
      per_token_(experts.per_token_loss),
      target_(context.target),
      tp_(context.tp),
      cp_(context.cp),
      tp_cp_(experts.tp_cp),
      tp_dp_cp_(experts.tp_dp_cp) {
  for (const config::AuxLoss& loss : config::aux_losses(model)) {
    double& coefficient = loss.type == AuxLossType::aux_loss       ? aux_
                          : loss.type == AuxLossType::seq_aux_loss ? seq_
                                                                   : global_;
    coefficient = loss.coeff;
  }
  if (global_ > 0)
    running_ = at::zeros({num_experts_ + 1}, at::TensorOptions().dtype(at::kDouble).device(target_.memory()));
}

namespace {

at::Tensor sums_gradient(const device::Target& target, const at::Tensor& dsums, const at::Tensor& logits,
                         const kernels::BalanceShape& shape) {
  const at::NoGradGuard no_grad;
  const at::Tensor given = dsums.contiguous();
  at::Tensor dlogits = at::empty_like(logits);
  nn::dispatch_wide(logits, [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"balance_backward", {&logits, &given}, {&dlogits}}, kernels::balance_backward<T>,
                   kernels::balance_backward_cuda<T>, static_cast<const T*>(nn::elements<T>(logits)),
                   static_cast<const double*>(given.const_data_ptr()), nn::elements<T>(dlogits), shape);
  });
  return dlogits;
}

}  // namespace

kernels::BalanceScore balance_score(config::ScoreFunction function) {
  switch (function) {
    case config::ScoreFunction::softmax:
      return kernels::BalanceScore::softmax;
    case config::ScoreFunction::sigmoid:
      return kernels::BalanceScore::sigmoid;
    case config::ScoreFunction::sqrtsoftplus:
      return kernels::BalanceScore::sqrtsoftplus;
  }
  MPX_ASSERT(false, "a score function without a kernel");
  return {};
}

at::Tensor balance_sums(const device::Target& target, const at::Tensor& logits, const kernels::BalanceShape& shape) {
  const at::Tensor x = logits.detach().contiguous();
  at::Tensor sums, lines;
  {
    const at::NoGradGuard no_grad;
    sums = at::empty({shape.sums()}, x.options().dtype(at::kDouble));
    lines = at::empty({kernels::balance_chunks(shape), shape.sums()}, sums.options());
    nn::dispatch_wide(x, [&](auto zero) {
      using T = decltype(zero);
      device::launch(target, {"balance", {&x}, {&sums, &lines}}, kernels::balance_forward<T>,
                     kernels::balance_forward_cuda<T>, static_cast<const T*>(nn::elements<T>(x)),
                     nn::elements<double>(sums), nn::elements<double>(lines), shape);
    });
  }
  return nn::attach(sums, {logits}, [target, x, shape](const at::Tensor& dy) -> nn::Gradients {
    return {sums_gradient(target, dy, x, shape)};
  });
}

// Mean number of tokens over tp_cp, if this rank has `own`. Context-parallel ranks may have different numbers.
static int64_t mean_tokens(int64_t own, const comm::Group& cp, const nn::Microbatch& batch) {
  if (batch.sequence.rank_rows.empty()) return own;
  const int64_t rows = batch.sequence.rank_rows[static_cast<size_t>(cp.index())].count;
  return own * batch.sequence.length / (rows * cp.size());
}

AuxiliaryLosses::Sums AuxiliaryLosses::own_sums(const at::Tensor& logits, const at::Tensor& experts, int64_t samples,
                                                const nn::Microbatch& batch) const {
  Sums sums;
  sums.num_tokens = mean_tokens(logits.size(0), cp_, batch);
  sums.samples = seq_ > 0 ? samples : 1;
  kernels::BalanceShape shape{logits.size(0), num_experts_, sums.samples};
  shape.score = balances() ? balance_score(rule_.score_function) : kernels::BalanceScore::none;
  shape.z = z_ > 0;
  const at::Tensor both = balance_sums(target_, logits, shape);
  sums.scores = both.narrow(0, 0, both.numel() - 1).view({sums.samples, num_experts_});
  sums.z = both.select(0, both.numel() - 1);
  if (balances()) {
    // Scores are monotonic in the logits.
    const at::Tensor best = experts.defined() ? experts : choose(logits, {.k = rule_.k});
    sums.tokens = tokens_per_expert(best, num_experts_, sums.samples).view(sums.scores.sizes()).to(at::kDouble);
  } else {
    sums.tokens = at::zeros(sums.scores.sizes(), both.options());
  }
  // Every tp rank has the loss mask of all rows, so only the first one adds it.
  sums.mask = tp_.first() && !per_token_ ? batch.loss_mask.sum(at::kDouble) : at::zeros({}, both.options());
  return sums;
}

void AuxiliaryLosses::add_terms(const at::Tensor& logits, const at::Tensor& experts, int64_t samples,
                                nn::SegmentContext& context) {
  const Sums own = own_sums(logits, experts, samples, context.batch);
  Sums whole = own;
  {
    const at::NoGradGuard no_grad;
    const int64_t n = own.tokens.numel();
    const at::Tensor packed = at::cat(
        {own.tokens.reshape({-1}), own.scores.detach().reshape({-1}), own.z.detach().view({1}), own.mask.view({1})});
    comm::all_reduce(packed, tp_cp_);
    whole.tokens = packed.narrow(0, 0, n).view(own.tokens.sizes());
    whole.scores = packed.narrow(0, n, n).view(own.tokens.sizes());
    whole.z = packed.select(0, 2 * n);
    whole.mask = packed.select(0, 2 * n + 1);
    whole.num_tokens = own.num_tokens * tp_cp_.size();
  }
  const at::Tensor weight = per_token_ ? at::full({}, static_cast<double>(whole.num_tokens), whole.mask.options())
                                       : whole.mask.clamp_min(1);
  const auto tokens = static_cast<double>(whole.num_tokens);
  if (aux_ > 0) {
    const double factor = balance_factor(aux_, num_experts_, rule_.k, tokens);
    const at::Tensor by_expert = whole.tokens.sum(0) * (weight * factor);
    add(context, "load_balancing_loss", (own.scores * by_expert).sum(), (whole.scores * by_expert).sum());
  }
  if (seq_ > 0) {
    const auto all = static_cast<double>(samples);
    const at::Tensor by_expert =
        whole.tokens * (weight * (balance_factor(seq_, num_experts_, rule_.k, tokens / all) / all));
    add(context, "seq_load_balancing_loss", (own.scores * by_expert).sum(), (whole.scores * by_expert).sum());
  }
  if (global_ > 0) add_global(own, weight, context);
  if (z_ > 0) {
    const at::Tensor factor = weight * (z_ / tokens);
    add(context, "z_loss", own.z * factor, whole.z * factor);
  }
}

void AuxiliaryLosses::add_global(const Sums& own, const at::Tensor& weight, nn::SegmentContext& context) {
  at::Tensor tokens = own.tokens.sum(0), scores = own.scores.detach().sum(0);
  if (!context.is_recompute) {
    const at::Tensor packed = at::cat({tokens, scores});
    comm::all_reduce(packed, tp_dp_cp_);
    tokens = packed.narrow(0, 0, num_experts_);
    scores = packed.narrow(0, num_experts_, num_experts_);
  }
  const double factor =
      balance_factor(global_, num_experts_, rule_.k, static_cast<double>(own.num_tokens) * tp_dp_cp_.size());
  const at::Tensor by_expert = context.once([&] { return add_to_running(tokens); }) * (weight * factor);
  add(context, "global_load_balancing_loss", (own.scores * by_expert).sum(), (scores * by_expert).sum());
}

// Returns the mean over the step's microbatches so far.
at::Tensor AuxiliaryLosses::add_to_running(const at::Tensor& tokens) const {
  const at::NoGradGuard no_grad;
  running_.add_(at::cat({tokens, at::ones({1}, tokens.options())}));
  return running_.narrow(0, 0, num_experts_) / running_.narrow(0, num_experts_, 1);
}

void AuxiliaryLosses::add(nn::SegmentContext& context, const char* name, const at::Tensor& own,
                          const at::Tensor& whole) const {
  const at::NoGradGuard no_grad;
  const at::Tensor value = whole / static_cast<double>(cp_.size());
  const at::AutoGradMode with_grad(own.requires_grad());
  context.terms.push_back(
      {name, nn::attach(value, {own}, [](const at::Tensor& dy) -> nn::Gradients { return {dy}; })});
}

}  // namespace metroplex::moe
