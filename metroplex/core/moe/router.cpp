#include "moe/router.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "comm/collectives.h"
#include "config/experts.h"
#include "moe/balance.h"
#include "moe/forced.h"
#include "moe/load_meter.h"
#include "nn/wide.h"

namespace metroplex::moe {
struct Router::State {
  State(const std::string& name, int64_t number, const config::Model& of, const nn::LayerContext& context,
        const ExpertContext& expert_context)
      : layer(number),
        model(of),
        target(context.target),
        experts(expert_context),
        rule(topk_rule(of)),
        gating(name, number, of, context),
        forced(number, of, context, expert_context),
        auxiliary(of, context, expert_context) {
    if (model.moe_router_enable_expert_bias) make_bias(name + ".expert_bias", context);
  }

  void make_bias(const std::string& name, const nn::LayerContext& context) {
    bias.name = name;
    bias.global_shape = bias.local_shape = {model.num_moe_experts};
    const auto options = at::TensorOptions().device(context.target.memory());
    bias.data = at::zeros(bias.local_shape, options.dtype(nn::acc_type(context.dtype)));
    bias.pending = at::zeros(bias.local_shape, options.dtype(at::kLong));
    bias.apply = [group = experts.tp_dp_cp, rate = model.moe_router_bias_update_rate](nn::Buffer& buffer) {
      comm::all_reduce(buffer.pending, group);
      move_expert_bias(buffer.data, buffer.pending, rate);
    };
  }

  Routing choose_experts(const at::Tensor& logits, const at::Tensor& chosen, bool training) const {
    if (!config::sinkhorn(model)) return route(target, logits, rule, {bias.data, chosen});
    if (chosen.defined() || !training) return route_by_sinkhorn(target, logits, rule.k, training, chosen);
    // Balances over the whole microbatch, including tokens of other ranks.
    const at::NoGradGuard no_grad;
    const at::Tensor all = sinkhorn(target, comm::all_gather(logits.detach(), 0, experts.tp_cp));
    const at::Tensor best = choose(comm::select_shard(all, 0, experts.tp_cp), {.k = rule.k});
    const at::AutoGradMode with_grad(logits.requires_grad());
    return route_by_sinkhorn(target, logits, rule.k, training, best);
  }

  void count(const at::Tensor& chosen) {
    const at::NoGradGuard no_grad;
    if (bias.data.defined()) bias.pending.add_(tokens_per_expert(chosen, model.num_moe_experts));
    if (experts.meter) experts.meter->count(layer, chosen);
  }

  int64_t layer;
  config::Model model;
  device::Target target;
  ExpertContext experts;
  TopKRule rule;
  Gating gating;
  ForcedRouting forced;
  AuxiliaryLosses auxiliary;
  nn::Buffer bias;  // `data` is undefined if the expert bias is off
};

Router::Router(const std::string& name, int64_t layer, const config::Model& model, const nn::LayerContext& context,
               const ExpertContext& experts)
    : state_(std::make_unique<State>(name, layer, model, context, experts)) {}
Router::~Router() = default;

Routing Router::forward(const nn::Input& in, nn::SegmentContext& context) {
  State& state = *state_;
  const nn::Microbatch& batch = context.batch;
  const int64_t samples = in.x.size(1);
  at::Tensor logits = state.gating.forward(in, batch);
  at::Tensor chosen;
  if (state.forced.deals(batch)) {
    chosen = state.forced.deal(logits.size(0), state.rule.k, batch);
  } else if (state.forced.draws(batch)) {
    logits = state.forced.draw(logits, samples, batch);
    chosen = choose(logits, state.rule);
  }
  Routing routing = state.choose_experts(logits, chosen, batch.training);
  const bool by_logits = state.rule.num_groups == 0 && (chosen.defined() || !state.bias.data.defined());
  const at::Tensor best = by_logits ? routing.experts : at::Tensor();
  if (state.model.has_capacity()) {
    const int64_t tokens = logits.size(0), capacity = config::expert_capacity(state.model, tokens);
    if (capacity < tokens)
      routing = drop(routing, state.model.num_moe_experts, capacity, state.model.moe_token_drop_policy);
  }
  if (batch.training && state.auxiliary.any()) state.auxiliary.add_terms(logits, best, samples, context);
  if (batch.training && !context.is_recompute) state.count(routing.experts);
  return routing;
}

void Router::collect_params(std::vector<nn::Param*>& params) { state_->gating.collect_params(params); }

void Router::collect_step_counts(std::vector<at::Tensor>& counts) {
  if (state_->auxiliary.running().defined()) counts.push_back(state_->auxiliary.running());
  if (state_->experts.meter) counts.push_back(state_->experts.meter->layer(state_->layer).counts);
}

void Router::collect_buffers(std::vector<nn::Buffer*>& buffers) {
  if (state_->bias.data.defined()) buffers.push_back(&state_->bias);
}

}  // namespace metroplex::moe
