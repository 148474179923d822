#include "nn/mlp.h"

#include <ATen/core/grad_mode.h>

#include "nn/autograd_node.h"
#include "config/derived.h"

namespace metroplex::nn {
namespace {

LinearSpec first_layer(const std::string& name, const config::Model& model) {
  LinearSpec spec;
  spec.name = name + ".linear_fc1";
  spec.in_features = model.hidden_size;
  spec.gated = model.gated_linear_unit;
  const int64_t width = config::ffn_width(model);
  spec.out_features = width * (spec.gated ? 2 : 1);
  if (spec.gated) spec.parts = {{"gate", 0, 0, width}, {"up", 0, width, width}};
  spec.bias = model.mlp_bias();
  spec.skip_bias_add = true;
  spec.adapters = config::fc1_boxes(model, width);
  return spec;
}

LinearSpec second_layer(const std::string& name, const config::Model& model) {
  LinearSpec spec;
  spec.name = name + ".linear_fc2";
  spec.in_features = config::ffn_width(model);
  spec.out_features = model.hidden_size;
  spec.bias = model.mlp_bias();
  spec.skip_bias_add = !model.sandwich_norm;  // which needs the whole sum
  spec.init = Init::scaled_normal;
  spec.adapters = {config::whole_layer("down_proj", model.hidden_size)};
  return spec;
}

}  // namespace

Mlp::Mlp(const std::string& name, const config::Model& model, const LayerContext& context)
    : activation_(activation_spec(model, context.target)),
      saving_(context.saving),
      fc1_(first_layer(name, model), context),
      fc2_(second_layer(name, model), context) {}

at::Tensor Mlp::forward(const Input& in, const Microbatch& batch) {
  Param* const bias = fc1_.bias();
  const AdapterRows rows = fc1_.adapter_rows(in, batch);
  const auto second = [&](const Input& x) { return fc2_.forward(x, fc2_.adapter_rows(x, batch)); };
  if (!at::GradMode::is_enabled())
    return second(apply_activation(fc1_.forward(in, rows), bias, activation_, nullptr));
  // Saved here, so that fc1 and its recomputation share it.
  const bool again = saving_.recomputes(SavePoint::fc1);
  const Input kept = again ? Input(in.x, saving_.keep(in)) : in;
  const at::Tensor x = fc1_.forward(kept, rows);
  at::Tensor x_saved;
  at::Tensor out = apply_activation(x, bias, activation_, &x_saved);
  const Saved saved = again ? Saved::recomputed([this, bias, input = kept.recomputed, rows] {
    return activation_saved(fc1_.forward({input.get(), input}, rows), bias);
  })
                            : saving_.keep(x_saved);
  out = attach(out, {x}, [this, bias, saved](const at::Tensor& dy) -> Gradients {
    return {activation_backward(dy, saved.get(), bias, activation_)};
  });
  if (!saving_.recomputes(SavePoint::activation)) return second(out);
  return second({out, Saved::recomputed(
                          [this, bias, saved] { return recomputed_activation(saved.get(), bias, activation_); })});
}

void Mlp::collect_params(std::vector<Param*>& params) {
  fc1_.collect_params(params);
  fc2_.collect_params(params);
}

}  // namespace metroplex::nn
