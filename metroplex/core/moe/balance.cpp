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

at::Tensor balance_gradient(const device::Target& target, const at::Tensor& logits, const at::Tensor& dsums,
                            const at::Tensor& scale, const kernels::BalanceShape& shape) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = logits.detach().contiguous(), given = dsums.contiguous();
  at::Tensor dlogits = at::empty_like(x);
  nn::dispatch_wide(x, [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"balance_backward", {&x, &given, &scale}, {&dlogits}}, kernels::balance_backward<T>,
                   kernels::balance_backward_cuda<T>, static_cast<const T*>(nn::elements<T>(x)),
                   static_cast<const double*>(given.const_data_ptr()),
                   static_cast<const double*>(nn::elements<double>(scale)), nn::elements<T>(dlogits), shape);
  });
  return dlogits;
}

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

at::Tensor balance_sums(const device::Target& target, const at::Tensor& logits, kernels::BalanceShape shape,
                        const at::Tensor& experts, const at::Tensor& mask) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = logits.detach().contiguous();
  const at::Tensor chosen = experts.defined() ? experts.detach().contiguous() : experts,
                   loss_mask = mask.defined() ? mask.to(x.scalar_type()).contiguous() : mask;
  if (chosen.defined()) shape.chosen = chosen.size(1);
  if (mask.defined()) shape.mask = mask.numel();
  const at::Tensor sums = at::empty({shape.sums()}, x.options().dtype(at::kDouble)),
                   lines = at::empty({kernels::balance_chunks(shape), shape.line()}, sums.options());
  nn::dispatch_wide(x, [&](auto zero) {
    using T = decltype(zero);
    const kernels::BalanceInputs<T> in{
        nn::elements<T>(x), chosen.defined() ? static_cast<const int64_t*>(chosen.const_data_ptr()) : nullptr,
        nn::elements<T>(loss_mask)};
    device::launch(target, {"balance", {&x, &chosen, &loss_mask}, {&sums, &lines}}, kernels::balance_forward<T>,
                   kernels::balance_forward_cuda<T>, in, nn::elements<double>(sums), nn::elements<double>(lines),
                   shape);
  });
  return sums;
}

// Mean number of tokens over tp_cp, if this rank has `own`. Context-parallel ranks may have different numbers.
static int64_t mean_tokens(int64_t own, const comm::Group& cp, const nn::Microbatch& batch) {
  if (batch.sequence.rank_rows.empty()) return own;
  const int64_t rows = batch.sequence.rank_rows[static_cast<size_t>(cp.index())].count;
  return own * batch.sequence.length / (rows * cp.size());
}

void AuxiliaryLosses::add_terms(const at::Tensor& logits, const at::Tensor& experts, int64_t samples,
                                nn::SegmentContext& context) {
  kernels::BalanceShape shape{logits.size(0), num_experts_, seq_ > 0 ? samples : 1};
  shape.score = balances() ? balance_score(rule_.score_function) : kernels::BalanceScore::none;
  shape.z = z_ > 0;
  // Scores are monotonic in the logits.
  const at::Tensor best = !balances() ? at::Tensor() : experts.defined() ? experts : choose(logits, {.k = rule_.k});
  // Every tp rank has the loss mask of all rows, so only the first one adds it.
  const at::Tensor mask = tp_.first() && !per_token_ ? context.batch.loss_mask : at::Tensor();
  Own own{logits, balance_sums(target_, logits, shape, best, mask), shape};
  if ((aux_ > 0) + (seq_ > 0) + (global_ > 0) + (z_ > 0) > 1) own.scores = make_scores(own);
  const auto tokens = static_cast<double>(mean_tokens(logits.size(0), cp_, context.batch) * tp_cp_.size());
  at::Tensor all, weight;
  {
    const at::NoGradGuard no_grad;
    all = global_ > 0 ? own.sums.clone() : own.sums;
    comm::all_reduce(all, tp_cp_);
    weight = per_token_ ? at::full({}, tokens, all.options()) : all.select(0, shape.line());
  }
  using Kind = kernels::BalanceTerm::Kind;
  const auto divisor = static_cast<double>(cp_.size());
  const auto term = [&](Kind kind, double factor) {
    return kernels::BalanceTerm{kind, shape.samples, num_experts_, factor, divisor};
  };
  if (aux_ > 0) {
    const double factor = balance_factor(aux_, num_experts_, rule_.k, tokens);
    add(context, "load_balancing_loss", own, all, weight, term(Kind::aux, factor));
  }
  if (seq_ > 0) {
    const auto sequences = static_cast<double>(samples);
    const double factor = balance_factor(seq_, num_experts_, rule_.k, tokens / sequences) / sequences;
    add(context, "seq_load_balancing_loss", own, all, weight, term(Kind::seq, factor));
  }
  if (global_ > 0) {
    const double of_all = tokens / tp_cp_.size() * tp_dp_cp_.size();
    add_global(own, term(Kind::aux, balance_factor(global_, num_experts_, rule_.k, of_all)), weight, context);
  }
  if (z_ > 0) add(context, "z_loss", own, all, weight, term(Kind::z, z_ / tokens));
}

// The tokens are those of the step's microbatches so far, averaged, and count once: only in the first sample.
void AuxiliaryLosses::add_global(const Own& own, const kernels::BalanceTerm& term, const at::Tensor& weight,
                                 nn::SegmentContext& context) {
  at::Tensor all;
  {
    const at::NoGradGuard no_grad;
    all = own.sums.clone();
    if (!context.is_recompute) comm::all_reduce(all, tp_dp_cp_);
    const int64_t bins = term.samples * num_experts_;
    const at::Tensor tokens = all.narrow(0, 0, bins).view({term.samples, num_experts_});
    const at::Tensor mean = context.once([&] { return add_to_running(tokens.sum(0)); });
    tokens.zero_();
    tokens.select(0, 0).copy_(mean);
  }
  add(context, "global_load_balancing_loss", own, all, weight, term);
}

// Returns the mean over the step's microbatches so far.
at::Tensor AuxiliaryLosses::add_to_running(const at::Tensor& tokens) const {
  const at::NoGradGuard no_grad;
  running_.add_(at::cat({tokens, at::ones({1}, tokens.options())}));
  return running_.narrow(0, 0, num_experts_) / running_.narrow(0, num_experts_, 1);
}

void AuxiliaryLosses::add(nn::SegmentContext& context, const char* name, const Own& own, const at::Tensor& sums,
                          const at::Tensor& weight, const kernels::BalanceTerm& term) const {
  at::Tensor value, gradient;
  {
    const at::NoGradGuard no_grad;
    value = at::empty({}, sums.options());
    gradient = at::empty({own.shape.bins() + 1}, sums.options());
    const auto read = [](const at::Tensor& x) { return static_cast<const double*>(x.const_data_ptr()); };
    device::launch(target_, {"balance_term", {&sums, &weight}, {&value, &gradient}, {{"factor", term.factor}}},
                   kernels::balance_term, kernels::balance_term_cuda, read(sums), read(weight),
                   nn::elements<double>(value), nn::elements<double>(gradient), term);
  }
  const at::AutoGradMode with_grad(own.logits.requires_grad());
  if (own.scores.defined()) {
    value = nn::attach(value, {own.scores},
                       [gradient](const at::Tensor& dy) -> nn::Gradients { return {gradient * dy}; });
  } else {
    value = nn::attach(value, {own.logits},
                       [target = target_, x = own.logits.detach(), gradient, shape = own.shape](const at::Tensor& dy)
                           -> nn::Gradients { return {balance_gradient(target, x, gradient, dy, shape)}; });
  }
  context.terms.push_back({name, value});
}

at::Tensor AuxiliaryLosses::make_scores(const Own& own) const {
  at::Tensor scores;
  {
    const at::NoGradGuard no_grad;
    scores = own.sums.narrow(0, own.shape.bins(), own.shape.bins() + 1).detach();
  }
  const at::AutoGradMode with_grad(own.logits.requires_grad());
  return nn::attach(
      scores, {own.logits},
      [target = target_, x = own.logits.detach(), shape = own.shape](const at::Tensor& dy) -> nn::Gradients {
        return {balance_gradient(target, x, dy, {}, shape)};
      });
}

}  // namespace metroplex::moe
