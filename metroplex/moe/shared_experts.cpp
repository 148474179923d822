#include "moe/shared_experts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "nn/autograd_node.h"
#include "nn/matmul.h"
#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::moe {
namespace {

config::Model shared_model(config::Model model) {
  model.ffn_hidden_size = model.moe_shared_expert_intermediate_size;
  return model;
}

// What recompute calls the places of this MLP.
nn::LayerContext shared_context(nn::LayerContext context) {
  nn::SavePointSet recomputed = context.saving.recomputed;
  nn::SavePointSet own;
  if (recomputed.has(nn::SavePoint::shared_fc1)) own |= nn::SavePointSet{nn::SavePoint::fc1};
  if (recomputed.has(nn::SavePoint::shared_activation)) own |= nn::SavePointSet{nn::SavePoint::activation};
  context.saving.recomputed = own;
  return context;
}

}  // namespace

SharedExperts::SharedExperts(const std::string& name, const config::Model& model, const nn::LayerContext& context)
    : target_(context.target), saving_(context.saving), mlp_(name, shared_model(model), shared_context(context)) {
  if (!model.moe_shared_expert_gate) return;
  topology::Placement placement;
  placement.partial = context.sp_axes;
  gate_.emplace(nn::make_param({name + ".gate_weight", {1, model.hidden_size}, placement}, context));
}

at::Tensor SharedExperts::forward(const nn::Input& in, const nn::Microbatch& batch) {
  const at::Tensor& x = in.x;
  const at::Tensor out = mlp_.forward(in, batch);
  if (!gate_) return out;
  at::Tensor score, gated;
  {
    const at::NoGradGuard no_grad;
    score = at::sigmoid(nn::to_wide(nn::linear_product(target_, x.detach(), gate_->data.t())));
    gated = at::mul(out.detach(), score.to(out.scalar_type()));
  }
  if (!at::GradMode::is_enabled()) return gated;
  return nn::attach(
      gated, {out, x},
      [this, score, kept = saving_.keep(out), input = saving_.keep(in)](const at::Tensor& dy) -> nn::Gradients {
        const at::NoGradGuard no_grad;
        const at::Tensor sums = nn::to_wide(at::mul(dy, kept.get())).sum(-1, true);
        const at::Tensor dlogit = sums.mul(score).mul_(1.0 - score).to(dy.scalar_type());
        nn::accumulate_weight_gradient(target_, *gate_, dlogit, input.get());
        return {at::mul(dy, score.to(dy.scalar_type())), nn::linear_product(target_, dlogit, gate_->data)};
      });
}

void SharedExperts::collect_params(std::vector<nn::Param*>& params) {
  mlp_.collect_params(params);
  if (gate_) params.push_back(&*gate_);
}

}  // namespace metroplex::moe
