#include "moe/router.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "nn/autograd_node.h"
#include "nn/linear.h"
#include "nn/matmul.h"
#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::moe {

at::ScalarType router_type(const config::Model& model, at::ScalarType parameters) {
  return model.moe_router_dtype == config::RouterDtype::fp64 ? at::kDouble : nn::acc_type(parameters);
}

Gating::Gating(const std::string& name, int64_t layer, const config::Model& model, const nn::LayerContext& context)
    : target_(context.target),
      saving_(context.saving),
      type_(router_type(model, context.dtype)),
      jitter_eps_(model.moe_input_jitter_eps),
      noise_(layer, nn::RandomSite::router_input, context) {
  using topology::Role;
  const int64_t experts = model.num_moe_experts;
  nn::ParamSpec weight{
      name + ".weight", {experts, model.hidden_size}, {.partial = context.sp_axes, .role = Role::router}};
  if (model.moe_router_weight_in_fp32) weight.dtype = nn::acc_type(context.dtype);
  weight_ = nn::make_param(weight, context);
  if (model.add_bias_linear)
    bias_ = nn::make_param({name + ".bias", {experts}, {.partial = context.sp_axes, .role = Role::bias}}, context);
}

at::Tensor Gating::jitter(const nn::DropoutMask& rows) const {
  if (!rows.counters.defined()) return {};
  return noise_.draw(Noise::uniform, rows, type_).mul_(2 * jitter_eps_).add_(1 - jitter_eps_);
}

at::Tensor Gating::input(const at::Tensor& x, const at::Tensor& jitter) const {
  const at::Tensor rows = x.reshape({-1, x.size(-1)}).to(type_);
  return jitter.defined() ? rows * jitter : rows;
}

// In fp32, without copies of the operands if the products of half types are.
at::Tensor Gating::product(const at::Tensor& x, const at::Tensor& jitter) const {
  const bool half = nn::is_half(x) && weight_.data.scalar_type() == x.scalar_type() && type_ == at::kFloat;
  if (half && !jitter.defined() && !bias_)
    return nn::wide_linear_product(target_, x.reshape({-1, x.size(-1)}), weight_.data.t());
  return nn::linear_product(target_, input(x, jitter), weight_.data.to(type_).t(),
                            bias_ ? bias_->data.to(type_) : at::Tensor());
}

at::Tensor Gating::forward(const nn::Input& in, const nn::Microbatch& batch) {
  const at::Tensor& x_sbh = in.x;
  const bool jitters = jitter_eps_ > 0 && batch.training;
  const nn::DropoutMask rows = jitters ? noise_.rows(x_sbh, batch) : nn::DropoutMask();
  at::Tensor logits;
  {
    const at::NoGradGuard no_grad;
    logits = product(x_sbh.detach(), jitter(rows));
  }
  if (!at::GradMode::is_enabled()) return logits;
  const nn::Saved saved = weight_.frozen ? nn::Saved() : saving_.keep(in);
  return nn::attach(logits, {x_sbh},
                    [this, rows, saved, sizes = x_sbh.sizes().vec()](const at::Tensor& dy) -> nn::Gradients {
                      return {backward(dy, saved.get(), rows).view(sizes)};
                    });
}

at::Tensor Gating::backward(const at::Tensor& dy, const at::Tensor& x, const nn::DropoutMask& rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor factors = jitter(rows);
  at::Tensor dx = nn::linear_product(target_, dy, weight_.data.to(type_));
  if (factors.defined()) dx.mul_(factors);
  if (!weight_.frozen) nn::accumulate_weight_gradient(target_, weight_, dy, input(x, factors));
  if (bias_) nn::accumulate_bias_gradient(target_, *bias_, dy);
  return dx;
}

void Gating::collect_params(std::vector<nn::Param*>& params) {
  params.push_back(&weight_);
  if (bias_) params.push_back(&*bias_);
}

}  // namespace metroplex::moe
