#include "nn/mlp.h"

namespace metroplex::nn {
namespace {

LinearSpec first_layer(const std::string& name, const config::Model& model) {
  LinearSpec spec;
  spec.name = name + ".linear_fc1";
  spec.in_features = model.hidden_size;
  spec.gated = model.gated_linear_unit;
  spec.out_features = ffn_width(model) * (spec.gated ? 2 : 1);
  spec.bias = model.add_bias_linear;
  spec.skip_bias_add = true;
  return spec;
}

LinearSpec second_layer(const std::string& name, const config::Model& model) {
  LinearSpec spec;
  spec.name = name + ".linear_fc2";
  spec.in_features = ffn_width(model);
  spec.out_features = model.hidden_size;
  spec.bias = model.add_bias_linear;
  spec.skip_bias_add = true;
  spec.init = Init::scaled_normal;
  return spec;
}

}  // namespace

int64_t ffn_width(const config::Model& model) {
  if (model.ffn_hidden_size > 0) return model.ffn_hidden_size;
  return model.gated_linear_unit ? 8 * model.hidden_size / 3 / 64 * 64 : 4 * model.hidden_size;
}

Mlp::Mlp(const std::string& name, const config::Model& model, const LayerContext& context)
    : activation_{activation_from_name(model.activation), model.gated_linear_unit},
      fc1_(first_layer(name, model), context),
      fc2_(second_layer(name, model), context) {}

at::Tensor Mlp::forward(const at::Tensor& x_sbh) {
  return fc2_.forward(bias_activation(fc1_.forward(x_sbh), fc1_.bias(), activation_));
}

void Mlp::collect_params(std::vector<Param*>& params) {
  fc1_.collect_params(params);
  fc2_.collect_params(params);
}

}  // namespace metroplex::nn
