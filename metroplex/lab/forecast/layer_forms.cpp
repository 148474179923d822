#include "forecast/layer_forms.h"

#include <algorithm>
#include <string>

#include "config/experts.h"
#include "config/layer_parts.h"

namespace metroplex::forecast {
namespace {

struct LayerForm {
  char symbol = 0;  // of model.hybrid_layer_pattern
  bool experts = false, linear = false, window = false, rotates = false;
  bool rounds = false;  // has low precision if the model has
  bool operator==(const LayerForm&) const = default;
};

char symbol(const config::LayerParts& parts) {
  using config::Sublayer;
  const Sublayer sublayer = parts.mamba       ? Sublayer::mamba
                            : parts.delta_net ? Sublayer::delta_net
                            : parts.lightning ? Sublayer::lightning
                            : parts.attention ? Sublayer::attention
                            : parts.mlp       ? Sublayer::mlp
                                              : Sublayer::experts;
  return static_cast<char>(sublayer);
}

std::vector<LayerForm> list_layers(const config::Config& config) {
  const config::Model& model = config.model;
  const std::vector<config::LayerParts> parts = config::layer_parts(model);
  const std::vector<bool> windows = config::window_layers(model), rotates = config::rope_layers(model);
  std::vector<LayerForm> layers;
  for (size_t i = 0; i < parts.size(); ++i) {
    LayerForm& layer = layers.emplace_back();
    if (!model.hybrid_layer_pattern.empty()) layer.symbol = symbol(parts[i]);
    layer.experts = parts[i].experts;
    layer.linear = parts[i].has_linear_attention();
    layer.window = windows[i];
    layer.rotates = rotates[i];
    layer.rounds = config.precision.of_layer(static_cast<int64_t>(i), model.num_layers).rounds_operands() ||
                   !config.precision.rounds_operands();
  }
  return layers;
}

// Layers without low precision come first, as at the start of a model.
std::vector<LayerForm> list_forms(const std::vector<LayerForm>& layers) {
  std::vector<LayerForm> forms;
  for (const bool rounds : {false, true}) {
    for (const LayerForm& layer : layers) {
      if (layer.rounds == rounds && std::find(forms.begin(), forms.end(), layer) == forms.end())
        forms.push_back(layer);
    }
  }
  return forms;
}

// Returns a pattern such as "[1,0]": 1 for forms whose property is `value`.
std::string pattern(const std::vector<LayerForm>& forms, bool LayerForm::*property, bool value = true) {
  std::string text;
  for (const LayerForm& form : forms)
    text += (text.empty() ? "[" : ",") + std::string(form.*property == value ? "1" : "0");
  return text + "]";
}

void set_layers(config::Config& config, const std::vector<LayerForm>& forms) {
  config::Model& model = config.model;
  model.num_layers = std::ssize(forms);
  if (!model.hybrid_layer_pattern.empty()) {
    model.hybrid_layer_pattern.clear();
    for (const LayerForm& form : forms) model.hybrid_layer_pattern += form.symbol;
  }
  if (model.moe_layer_freq != config::Model().moe_layer_freq)
    model.moe_layer_freq = pattern(forms, &LayerForm::experts);
  if (!model.linear_attention_freq.empty()) model.linear_attention_freq = pattern(forms, &LayerForm::linear);
  if (!model.window_attn_skip_freq.empty()) model.window_attn_skip_freq = pattern(forms, &LayerForm::window);
  if (!model.no_rope_freq.empty()) model.no_rope_freq = pattern(forms, &LayerForm::rotates, false);
  if (config.precision.first_last_layers_bf16) {
    config.precision.num_layers_at_start_in_bf16 =
        std::count_if(forms.begin(), forms.end(), [](const LayerForm& form) { return !form.rounds; });
    config.precision.num_layers_at_end_in_bf16 = 0;
  }
}

}  // namespace

LayerForms find_layer_forms(const config::Config& config) {
  const std::vector<LayerForm> layers = list_layers(config), forms = list_forms(layers);
  LayerForms out{config, {}};
  for (const LayerForm& layer : layers)
    out.of_layer.push_back(static_cast<size_t>(std::find(forms.begin(), forms.end(), layer) - forms.begin()));
  set_layers(out.config, forms);
  return out;
}

}  // namespace metroplex::forecast
