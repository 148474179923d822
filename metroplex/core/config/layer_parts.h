// The sublayers of each layer: a mixer (attention or linear attention) and a feed-forward part, or the one that
// model.hybrid_layer_pattern names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

// Symbols of model.hybrid_layer_pattern, as in Megatron, which has no L.
enum class Sublayer : char {
  mamba = 'M',
  delta_net = 'G',
  lightning = 'L',
  attention = '*',
  mlp = '-',
  experts = 'E'
};

struct LayerParts {
  bool mamba = false, delta_net = false, lightning = false, attention = false, mlp = false, experts = false;

  bool has_linear_attention() const { return delta_net || lightning; }
  bool has_mixer() const { return mamba || has_linear_attention() || attention; }
};
// Throws base::Error("config") with key, value, rule and suggested fix.
std::vector<LayerParts> layer_parts(const Model& model);
// The parts of a layer with a global number. Multi-token prediction layers follow the last layer and copy its type.
// CodeGeeX's top query layer is dense.
LayerParts parts_of_layer(const Model& model, int64_t number);
// Whether a layer has the part; false if a pattern is invalid.
bool any_layer_has(const Model& model, bool LayerParts::*part);
// Returns nothing and sets `problem` if the pattern is invalid or does not give num_layers symbols.
std::optional<std::vector<LayerParts>> read_hybrid_layers(const std::string& pattern, int64_t num_layers,
                                                          std::string& problem);

// Factors of a residual connection: of the residual stream, and of the result that is added to it.
struct ResidualFactors {
  double stream = 1, result = 1;
};
ResidualFactors mixer_residual(const Model& model, const LayerParts& parts);
ResidualFactors mlp_residual(const Model& model);

// Returns model.mamba_num_heads, or 2 hidden_size / mamba_head_dim.
int64_t mamba_heads(const Model& model);

}  // namespace metroplex::config
