#include "moe/routing.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

#include "base/error.h"
#include "nn/autograd_node.h"
#include "kernels/route.h"
#include "kernels/sinkhorn.h"
#include "nn/wide.h"

namespace metroplex::moe {
namespace {

using config::ScoreFunction;
using config::TopkNormalization;

int64_t best_of_group(const TopKRule& rule) {
  if (rule.num_groups == 0) return 0;
  return rule.group_score_topk > 0 ? rule.group_score_topk : rule.k / rule.group_topk;
}

kernels::RouteShape route_shape(const at::Tensor& logits, const TopKRule& rule) {
  kernels::RouteShape shape{logits.size(0), logits.size(1), rule.k};
  shape.normalizes = rule.normalization == TopkNormalization::always ||
                     (rule.normalization == TopkNormalization::automatic && rule.k > 1);
  if (rule.scaling_factor > 0) shape.scale = rule.scaling_factor;
  if (rule.score_function == ScoreFunction::sigmoid) shape.score = kernels::RouteScore::sigmoid;
  else if (rule.score_function == ScoreFunction::sqrtsoftplus) shape.score = kernels::RouteScore::sqrtsoftplus;
  else if (rule.pre_softmax) shape.score = kernels::RouteScore::softmax_of_all;
  shape.groups = rule.num_groups, shape.groups_chosen = rule.group_topk, shape.best_of_group = best_of_group(rule);
  return shape;
}

at::Tensor probs_gradient(const device::Target& target, const Routing& saved, const at::Tensor& logits,
                          const kernels::RouteShape& shape) {
  const at::NoGradGuard no_grad;
  const at::Tensor dprobs = saved.probs.contiguous();
  at::Tensor dlogits = at::empty_like(logits);
  nn::dispatch_wide(logits, [&](auto zero) {
    using T = decltype(zero);
    const kernels::RouteBackward<T> operands{nn::elements<T>(dprobs), nn::elements<T>(logits),
                                             static_cast<const int64_t*>(saved.experts.const_data_ptr()),
                                             nn::elements<T>(dlogits)};
    device::launch(target,
                   {"route_backward", {&dprobs, &logits, &saved.experts}, {&dlogits}, {{"scale", shape.scale}}},
                   kernels::route_backward<T>, kernels::route_backward_cuda<T>, operands, shape);
  });
  return dlogits;
}

}  // namespace

TopKRule topk_rule(const config::Model& model) {
  TopKRule rule;
  rule.k = model.moe_router_topk;
  rule.score_function = model.moe_router_score_function;
  rule.pre_softmax = model.moe_router_pre_softmax;
  if (model.moe_router_group_topk > 0) {
    rule.num_groups = model.moe_router_num_groups;
    rule.group_topk = model.moe_router_group_topk;
    rule.group_score_topk = model.moe_router_group_score_topk;
  }
  rule.scaling_factor = model.moe_router_topk_scaling_factor;
  rule.normalization = model.moe_router_topk_normalization;
  return rule;
}

at::Tensor choose(const at::Tensor& scores, const TopKRule& rule) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = scores.detach();
  if (rule.num_groups == 0) return std::get<1>(x.topk(rule.k, -1));
  const int64_t tokens = x.size(0), of_group = x.size(1) / rule.num_groups;
  const at::Tensor of_groups =
      std::get<0>(x.view({tokens, rule.num_groups, of_group}).topk(best_of_group(rule), -1)).sum(-1);
  const at::Tensor best = std::get<1>(of_groups.topk(rule.group_topk, -1));
  const at::Tensor out =
      at::ones({tokens, rule.num_groups}, x.options().dtype(at::kBool)).scatter_(1, best, false).unsqueeze(-1);
  const at::Tensor kept =
      x.view({tokens, rule.num_groups, of_group}).masked_fill(out, -std::numeric_limits<double>::infinity());
  return std::get<1>(kept.view({tokens, -1}).topk(rule.k, -1));
}

static at::Tensor choose_by_softmax(const at::Tensor& logits, const TopKRule& rule, const at::Tensor& bias) {
  const at::NoGradGuard no_grad;
  return choose(at::softmax(logits.detach(), -1) + bias, rule);
}

Routing route(const device::Target& target, const at::Tensor& logits, const TopKRule& rule, const Choice& choice) {
  if (rule.score_function == ScoreFunction::softmax && choice.bias.defined()) {
    const bool chosen = choice.chosen.defined();
    return route(target, logits, rule, {{}, chosen ? choice.chosen : choose_by_softmax(logits, rule, choice.bias)});
  }
  kernels::RouteShape shape = route_shape(logits, rule);
  const at::Tensor x = logits.detach().contiguous();
  Routing routing{choice.chosen, {}};
  shape.chosen = routing.experts.defined();
  {
    const at::NoGradGuard no_grad;
    const at::Tensor bias = choice.bias.defined() ? choice.bias.to(x.scalar_type()) : at::Tensor();
    if (!shape.chosen) routing.experts = at::empty({shape.tokens, shape.k}, x.options().dtype(at::kLong));
    routing.experts = routing.experts.contiguous();
    routing.probs = at::empty({shape.tokens, shape.k}, x.options());
    const bool of_groups = !shape.chosen && shape.groups > 0;
    const at::Tensor group_scores = of_groups ? at::empty({shape.tokens, shape.groups}, x.options()) : at::Tensor();
    nn::dispatch_wide(x, [&](auto zero) {
      using T = decltype(zero);
      const kernels::RouteForward<T> operands{nn::elements<T>(x), nn::elements<T>(bias),
                                              static_cast<int64_t*>(routing.experts.mutable_data_ptr()),
                                              nn::elements<T>(routing.probs), nn::elements<T>(group_scores)};
      device::launch(target,
                     {"route_forward",
                      {&x, &bias, shape.chosen ? &routing.experts : nullptr},
                      {&routing.experts, &routing.probs},
                      {{"scale", shape.scale}},
                      0,
                      {&group_scores}},
                     kernels::route_forward<T>, kernels::route_forward_cuda<T>, operands, shape);
    });
  }
  routing.probs = nn::attach(routing.probs, {logits},
                             [target, x, shape, experts = routing.experts](const at::Tensor& dy) -> nn::Gradients {
                               return {probs_gradient(target, {experts, dy}, x, shape)};
                             });
  return routing;
}

at::Tensor sinkhorn(const device::Target& target, const at::Tensor& logits, double tolerance) {
  const at::NoGradGuard no_grad;
  const at::Tensor in = logits.detach().contiguous(), out = at::empty_like(in);
  const at::Tensor factors = at::empty({in.size(0) + 2 * in.size(1)}, in.options());
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"sinkhorn", {&in}, {&out, &factors}, {{"tolerance", tolerance}}}, kernels::sinkhorn<T>,
                   kernels::sinkhorn_cuda<T>, static_cast<const T*>(in.const_data_ptr()),
                   static_cast<T*>(out.mutable_data_ptr()), static_cast<T*>(factors.mutable_data_ptr()),
                   kernels::SinkhornShape{in.size(0), in.size(1), tolerance});
  };
  in.scalar_type() == at::kDouble ? run(double{}) : run(float{});
  return out;
}

Routing route_by_sinkhorn(const device::Target& target, const at::Tensor& logits, int64_t k, bool training,
                          const at::Tensor& chosen) {
  const at::Tensor scores = k == 1 ? at::sigmoid(logits) : at::softmax(logits, -1);
  Routing routing;
  routing.experts = chosen.defined() ? chosen : choose(training ? sinkhorn(target, logits) : scores, {.k = k});
  routing.probs = scores.gather(1, routing.experts);
  return routing;
}

Routing drop(const Routing& routing, int64_t num_experts, int64_t capacity, config::DropPolicy policy) {
  at::Tensor dropped;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor flat = routing.experts.reshape({-1});  // by token; no token has an expert twice
    at::Tensor experts = flat, order;
    if (policy == config::DropPolicy::probs) {
      order = routing.probs.detach().reshape({-1}).argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
      experts = flat.gather(0, order);
    }
    const auto [sorted, by_expert] = experts.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
    const at::Tensor counts = tokens_per_expert(flat, num_experts);
    const at::Tensor place = at::arange(flat.numel(), flat.options()) - (counts.cumsum(0) - counts).gather(0, sorted);
    const at::Tensor from = order.defined() ? order.gather(0, by_expert) : by_expert;
    dropped = flat.scatter(0, from, place).ge(capacity).view(routing.experts.sizes());  // `from` is a permutation
  }
  return {routing.experts.masked_fill(dropped, -1), routing.probs.masked_fill(dropped, 0)};
}

at::Tensor tokens_per_expert(const at::Tensor& experts, int64_t num_experts, int64_t samples) {
  const at::NoGradGuard no_grad;
  // Expert -1 is counted in a separate first bin.
  at::Tensor places = experts + 1;
  if (samples > 1) {
    const at::Tensor first = at::arange(samples, experts.options()) * (num_experts + 1);
    places = experts.view({-1, samples, experts.size(-1)}).add(1).add(first.unsqueeze(-1));
  }
  places = places.reshape({-1});
  const at::Tensor counts =
      at::zeros({samples * (num_experts + 1)}, places.options()).scatter_add_(0, places, at::ones_like(places));
  const at::Tensor of_samples = counts.view({samples, num_experts + 1}).narrow(1, 1, num_experts);
  return samples > 1 ? of_samples : of_samples.select(0, 0);
}

void move_expert_bias(const at::Tensor& bias, const at::Tensor& counts, double rate) {
  const at::NoGradGuard no_grad;
  const at::Tensor below = counts.sum() - counts * counts.numel();
  bias.add_(below.sign().to(bias.scalar_type()), rate);
}

double balance_factor(double coefficient, int64_t num_experts, int64_t k, double tokens) {
  return coefficient * static_cast<double>(num_experts) / (static_cast<double>(k) * tokens * tokens);
}

}  // namespace metroplex::moe
