#include "config/layer_parts.h"

#include <algorithm>

#include "base/error.h"
#include "config/experts.h"

namespace metroplex::config {

using base::concat;

// Returns why a symbol of Megatron's is not supported, or "".
static std::string other_symbol(char symbol) {
  switch (symbol) {
    case 'D':
      return "D, sparse attention";
    case '+':
      return "+, latent attention";
    case '/':
      return "/, which separates layers of multi-token prediction";
    case '|':
      return "|, the end of a pipeline stage, which belongs into parallel.pipeline_model_parallel_layout";
    default:
      return concat("the unknown symbol ", symbol);
  }
}

std::optional<std::vector<LayerParts>> read_hybrid_layers(const std::string& pattern, int64_t num_layers,
                                                          std::string& problem) {
  problem.clear();
  std::vector<LayerParts> layers;
  for (const char symbol : pattern) {
    LayerParts parts;
    switch (Sublayer{symbol}) {
      case Sublayer::mamba:
        parts.mamba = true;
        break;
      case Sublayer::delta_net:
        parts.delta_net = true;
        break;
      case Sublayer::lightning:
        parts.lightning = true;
        break;
      case Sublayer::attention:
        parts.attention = true;
        break;
      case Sublayer::mlp:
        parts.mlp = true;
        break;
      case Sublayer::experts:
        parts.experts = true;
        break;
      default:
        problem = concat("it has ", other_symbol(symbol));
        return std::nullopt;
    }
    layers.push_back(parts);
  }
  if (static_cast<int64_t>(layers.size()) == num_layers) return layers;
  problem = concat("it has ", layers.size(), " symbols for model.num_layers = ", num_layers);
  return std::nullopt;
}

static LayerParts plain_parts(const Model& model, bool linear, bool experts) {
  const bool lightning = model.has_lightning();
  return {.delta_net = linear && !lightning,
          .lightning = linear && lightning,
          .attention = !linear,
          .mlp = !experts,
          .experts = experts};
}

std::vector<LayerParts> layer_parts(const Model& model) {
  if (!model.hybrid_layer_pattern.empty()) {
    std::string problem;
    const auto layers = read_hybrid_layers(model.hybrid_layer_pattern, model.num_layers, problem);
    MPX_CHECK(layers.has_value(), "config", "model.hybrid_layer_pattern = ", model.hybrid_layer_pattern,
              ": must have one symbol per layer, but ", problem, "; write M, G, L, *, - or E for each layer");
    return *layers;
  }
  const std::vector<bool> experts = moe_layers(model), linear = linear_attention_layers(model);
  std::vector<LayerParts> layers;
  for (size_t i = 0; i < experts.size(); ++i) layers.push_back(plain_parts(model, linear[i], experts[i]));
  return layers;
}

LayerParts parts_of_layer(const Model& model, int64_t number) {
  if (number >= model.num_layers && model.mtp_num_layers == 0) return {.attention = true, .mlp = true};
  const auto layer = static_cast<size_t>(std::min(number, model.num_layers - 1));
  if (!model.hybrid_layer_pattern.empty()) return layer_parts(model)[layer];
  return plain_parts(model, linear_attention_layers(model)[layer], moe_layers(model)[layer]);
}

static bool has_valid_patterns(const Model& model) {
  std::string problem;
  const int64_t count = model.num_layers;
  if (!model.hybrid_layer_pattern.empty())
    return read_hybrid_layers(model.hybrid_layer_pattern, count, problem).has_value();
  return (!model.has_experts() || read_moe_layers(model.moe_layer_freq, count, problem)) &&
         (!model.has_linear_attention() || read_window_layers(model.linear_attention_freq, count, problem));
}

bool any_layer_has(const Model& model, bool LayerParts::*part) {
  if (!has_valid_patterns(model)) return false;
  const std::vector<LayerParts> layers = layer_parts(model);
  return std::any_of(layers.begin(), layers.end(), [&](const LayerParts& layer) { return layer.*part; });
}

static ResidualFactors residual_factors(const Model& model, double stream, double result) {
  return {stream > 0 ? stream : model.residual_stream_multiplier, result > 0 ? result : model.residual_multiplier};
}

ResidualFactors mixer_residual(const Model& m, const LayerParts& parts) {
  if (!parts.has_linear_attention()) return residual_factors(m, 0, 0);
  return residual_factors(m, m.residual_stream_multiplier_linear, m.residual_multiplier_linear);
}

ResidualFactors mlp_residual(const Model& m) {
  return residual_factors(m, m.residual_stream_multiplier_mlp, m.residual_multiplier_mlp);
}

int64_t mamba_heads(const Model& model) {
  return model.mamba_num_heads > 0 ? model.mamba_num_heads : 2 * model.hidden_size / model.mamba_head_dim;
}

}  // namespace metroplex::config
