#include "nn/mlp.h"

#include <ATen/core/grad_mode.h>

#include "nn/autograd_node.h"
#include "config/derived.h"

namespace metroplex::nn {
namespace {

LinearSpec fc1_spec(const std::string& name, const config::Model& model) {
  LinearSpec spec;
  spec.name = name + ".linear_fc1";
  spec.in_features = model.hidden_size;
  const int64_t width = config::ffn_width(model);
  spec.out_features = width;
  if (model.gated_linear_unit) {
    spec.out_features = 2 * width;
    spec.sections = {width, width};
    spec.regions = {{"gate", 0, 0, width}, {"up", 0, width, width}};
  }
  spec.bias = model.mlp_bias();
  spec.skip_bias_add = true;
  spec.adapters = config::fc1_boxes(model, width);
  return spec;
}

LinearSpec fc2_spec(const std::string& name, const config::Model& model) {
  LinearSpec spec;
  spec.name = name + ".linear_fc2";
  spec.in_features = config::ffn_width(model);
  spec.out_features = model.hidden_size;
  spec.bias = model.mlp_bias();
  spec.skip_bias_add = !model.needs_whole_sum();
  spec.init = Init::scaled_normal;
  spec.adapters = {config::whole_layer("down_proj", model.hidden_size)};
  return spec;
}

}  // namespace

Mlp::Mlp(const std::string& name, const config::Model& model, const LayerContext& context)
    : activation_(activation_spec(model, context.target)),
      saving_(context.saving),
      fc1_(fc1_spec(name, model), LinearSplit::output, context),
      fc2_(fc2_spec(name, model), LinearSplit::input, context) {}

at::Tensor Mlp::forward(const Input& in, const Microbatch& batch) {
  if (!at::GradMode::is_enabled() || !saving_.recomputes(SavePoint::fc1)) return second(first(in, batch), batch);
  const LinearRows rows = fc1_.rows(in, batch);
  const Input saved_input(in.x, saving_.keep(in));  // saved here, so that fc1 and its recomputation share it
  const at::Tensor product = fc1_.forward(saved_input, rows);
  const Saved saved = Saved::recomputed([this, bias = fc1_.bias(), input = saved_input.recomputed, rows] {
    return activation_saved(fc1_.forward({input.get(), input}, rows), bias);
  });
  return after_fc1(product, saved, batch);
}

at::Tensor Mlp::first(const Input& in, const Microbatch& batch) { return fc1_.forward(in, batch); }

at::Tensor Mlp::second(const at::Tensor& product, const Microbatch& batch) {
  return after_fc1(product, std::nullopt, batch);
}

at::Tensor Mlp::after_fc1(const at::Tensor& product, const std::optional<Saved>& saved, const Microbatch& batch) {
  Param* const bias = fc1_.bias();
  const auto fc2 = [&](const Input& x) { return fc2_.forward(x, batch); };
  if (!at::GradMode::is_enabled()) return fc2(apply_activation(product, bias, activation_, nullptr));
  at::Tensor x_saved;
  at::Tensor out = apply_activation(product, bias, activation_, &x_saved);
  const Saved saved_input = saved ? *saved : saving_.keep(x_saved);
  out = attach(out, {product}, [this, bias, saved_input](const at::Tensor& dy) -> Gradients {
    return {activation_backward(dy, saved_input.get(), bias, activation_)};
  });
  if (!saving_.recomputes(SavePoint::activation)) return fc2(out);
  return fc2({out, Saved::recomputed([this, bias, saved_input] {
                return recomputed_activation(saved_input.get(), bias, activation_);
              })});
}

void Mlp::collect_params(std::vector<Param*>& params) {
  fc1_.collect_params(params);
  fc2_.collect_params(params);
}

}  // namespace metroplex::nn
