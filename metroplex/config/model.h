// The shape of the network. Names are Megatron's (TransformerConfig); 0 means "derived", see validate.h.
#pragma once

#include <cstdint>
#include <string>

#include "config/choice.h"

namespace metroplex::config {

enum class PositionEmbedding { learned_absolute, rope, none };
template <>
inline constexpr Word<PositionEmbedding> kWords<PositionEmbedding>[] = {
    {PositionEmbedding::learned_absolute, "learned_absolute"},
    {PositionEmbedding::rope, "rope"},
    {PositionEmbedding::none, "none"}};

enum class Normalization { LayerNorm, RMSNorm };
template <>
inline constexpr Word<Normalization> kWords<Normalization>[] = {{Normalization::LayerNorm, "LayerNorm"},
                                                                {Normalization::RMSNorm, "RMSNorm"}};

enum class Activation { gelu, gelu_tanh, quick_gelu, silu, relu, squared_relu };
template <>
inline constexpr Word<Activation> kWords<Activation>[] = {
    {Activation::gelu, "gelu"}, {Activation::gelu_tanh, "gelu_tanh"}, {Activation::quick_gelu, "quick_gelu"},
    {Activation::silu, "silu"}, {Activation::relu, "relu"},           {Activation::squared_relu, "squared_relu"}};

// Its keys, each with type, default and help: model_keys.inc.
struct Model {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/model_keys.inc"
#undef KEY

  bool tied() const { return !untie_embeddings_and_output_weights; }
};

}  // namespace metroplex::config
