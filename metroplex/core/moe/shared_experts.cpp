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

// Maps the shared expert's save points to those of nn::Mlp.
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

// A separate node sums the gradients of this module's readers of `in` before they join those of router and dispatch.
// The sum then does not depend on the segment in which the readers run.
static nn::Input own_node(const nn::Input& in) {
  if (!at::GradMode::is_enabled()) return in;
  const at::Tensor x =
      nn::attach(in.x.variable_data(), {in.x}, [](const at::Tensor& dy) -> nn::Gradients { return {dy}; });
  return {x, in.recomputed};
}

at::Tensor SharedExperts::forward(const nn::Input& in, const nn::Microbatch& batch) {
  const nn::Input x = own_node(in);
  const at::Tensor out = mlp_.forward(x, batch);
  return gate_ ? gated(out, score(x)) : out;
}

SharedExperts::Begun SharedExperts::begin(const nn::Input& in, const nn::Microbatch& batch) {
  const nn::Input x = own_node(in);
  return {mlp_.first(x, batch), gate_ ? score(x) : at::Tensor()};
}

at::Tensor SharedExperts::finish(const Begun& begun, const nn::Microbatch& batch) {
  const at::Tensor out = mlp_.second(begun.product, batch);
  return gate_ ? gated(out, begun.score) : out;
}

at::Tensor SharedExperts::score(const nn::Input& in) {
  at::Tensor score;
  {
    const at::NoGradGuard no_grad;
    score = at::sigmoid(nn::to_wide(nn::linear_product(target_, in.x.detach(), gate_->data.t())));
  }
  if (!at::GradMode::is_enabled()) return score;
  // The closure holds an alias: holding the node's own output would create a reference cycle.
  return nn::attach(score, {in.x},
                    [this, values = score.detach(), input = saving_.keep(in),
                     type = in.x.scalar_type()](const at::Tensor& dscore) -> nn::Gradients {
                      const at::NoGradGuard no_grad;
                      const at::Tensor dlogit = dscore.mul(values).mul_(1.0 - values).to(type);
                      nn::accumulate_weight_gradient(target_, *gate_, dlogit, input.get());
                      return {nn::linear_product(target_, dlogit, gate_->data)};
                    });
}

at::Tensor SharedExperts::gated(const at::Tensor& out, const at::Tensor& score) const {
  at::Tensor product;
  {
    const at::NoGradGuard no_grad;
    product = at::mul(out.detach(), score.detach().to(out.scalar_type()));
  }
  if (!at::GradMode::is_enabled()) return product;
  return nn::attach(product, {out, score},
                    [kept = saving_.keep(out), score = score.detach()](const at::Tensor& dy) -> nn::Gradients {
                      const at::NoGradGuard no_grad;
                      const at::Tensor dscore = nn::to_wide(at::mul(dy, kept.get())).sum(-1, true);
                      return {at::mul(dy, score.to(dy.scalar_type())), dscore};
                    });
}

void SharedExperts::collect_params(std::vector<nn::Param*>& params) {
  collect_begin_params(params);
  collect_finish_params(params);
}

void SharedExperts::collect_begin_params(std::vector<nn::Param*>& params) {
  mlp_.collect_first_params(params);
  if (gate_) params.push_back(&*gate_);
}

void SharedExperts::collect_finish_params(std::vector<nn::Param*>& params) { mlp_.collect_second_params(params); }

}  // namespace metroplex::moe
