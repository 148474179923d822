// Layers with one sublayer each (model.hybrid_layer_pattern), and the usual layers with two.
#include <gtest/gtest.h>

#include "config/experts.h"
#include "config/layer_parts.h"
#include "config/support.h"
#include "config/validate.h"

namespace metroplex::config::layer_parts_test {

static std::string to_text(const Model& model) {
  std::string text;
  for (const LayerParts& parts : layer_parts(model)) {
    for (const auto& [has, symbol] : {std::pair{parts.mamba, 'M'},
                                      {parts.delta_net, 'G'},
                                      {parts.lightning, 'L'},
                                      {parts.attention, '*'},
                                      {parts.mlp, '-'},
                                      {parts.experts, 'E'}})
      if (has) text += symbol;
    text += ' ';
  }
  return text;
}

TEST(LayerParts, AreThoseOfThePattern) {
  Model model;
  model.num_layers = 3;
  EXPECT_EQ(to_text(model), "*- *- *- ");
  model.num_moe_experts = 4, model.moe_layer_freq = "2";
  EXPECT_EQ(to_text(model), "*E *- *E ");
  model.hybrid_layer_pattern = "E-M";
  EXPECT_EQ(to_text(model), "E - M ");
  EXPECT_EQ(moe_layers(model), (std::vector<bool>{true, false, false}));
  EXPECT_TRUE(parts_of_layer(model, 2).mamba);
  EXPECT_FALSE(parts_of_layer(model, 1).mamba);
  EXPECT_FALSE(any_layer_has(model, &LayerParts::attention));
  model.hybrid_layer_pattern = "L*G";
  EXPECT_EQ(to_text(model), "L * G ");
  EXPECT_TRUE(model.has_lightning());
  EXPECT_TRUE(model.has_delta_net() && !model.has_linear_attention());
  EXPECT_EQ(linear_attention_layers(model), std::vector<bool>(3)) << "those of linear_attention_freq";
  model.hybrid_layer_pattern = "E-MM";
  const std::string error = catch_error([&] { layer_parts(model); });
  EXPECT_NE(error.find("model.hybrid_layer_pattern = E-MM: must have one symbol per layer, but it has 4 symbols for "
                       "model.num_layers = 3"),
            std::string::npos)
      << error;
  EXPECT_FALSE(any_layer_has(model, &LayerParts::mamba)) << "the rules report the pattern";
}

TEST(LayerParts, MixerMayBeADeltaNet) {
  Model model;
  model.num_layers = 4, model.mtp_num_layers = 1;
  model.experimental_attention_variant = AttentionVariant::gated_delta_net, model.linear_attention_freq = "2";
  model.num_moe_experts = 4, model.moe_layer_freq = "[0,1,1,1]";
  EXPECT_EQ(to_text(model), "G- *E GE *E ");
  EXPECT_TRUE(parts_of_layer(model, 4).attention && parts_of_layer(model, 4).experts) << "as the last layer";
  model.mtp_num_layers = 0;
  EXPECT_TRUE(parts_of_layer(model, 4).mlp) << "the top query layer of CodeGeeX is dense";
  model.linear_attention_freq = "x";
  EXPECT_FALSE(any_layer_has(model, &LayerParts::delta_net)) << "the rules report the pattern";
}

TEST(LayerParts, MixerMayBeLightningAttention) {
  Model model;
  model.num_layers = 4;
  model.experimental_attention_variant = AttentionVariant::lightning_attention, model.linear_attention_freq = "2";
  EXPECT_EQ(to_text(model), "L- *- L- *- ");
  EXPECT_TRUE(model.has_linear_attention() && model.has_lightning() && !model.has_delta_net());
}

TEST(LayerParts, HaveTheirOwnResidualFactors) {
  Model model;
  model.residual_stream_multiplier = 2, model.residual_multiplier = 3;
  const auto factors = [&](const ResidualFactors& each) { return std::pair{each.stream, each.result}; };
  const LayerParts delta_net{.delta_net = true}, lightning{.lightning = true}, attention{.attention = true};
  for (const LayerParts& parts : {delta_net, lightning, attention})
    EXPECT_EQ(factors(mixer_residual(model, parts)), (std::pair{2.0, 3.0}));
  EXPECT_EQ(factors(mlp_residual(model)), (std::pair{2.0, 3.0}));
  model.residual_stream_multiplier_linear = 4, model.residual_multiplier_linear = 5;
  model.residual_stream_multiplier_mlp = 6, model.residual_multiplier_mlp = 7;
  EXPECT_EQ(factors(mixer_residual(model, delta_net)), (std::pair{4.0, 5.0}));
  EXPECT_EQ(factors(mixer_residual(model, lightning)), (std::pair{4.0, 5.0}));
  EXPECT_EQ(factors(mixer_residual(model, attention)), (std::pair{2.0, 3.0}));
  EXPECT_EQ(factors(mlp_residual(model)), (std::pair{6.0, 7.0}));
}

TEST(LayerParts, UnsupportedSymbolsAreNamed) {
  for (const auto& [symbol, name] : {std::pair{"D", "sparse attention"},
                                     {"+", "latent attention"},
                                     {"/", "multi-token prediction"},
                                     {"|", "parallel.pipeline_model_parallel_layout"},
                                     {"X", "unknown symbol X"}}) {
    std::string problem;
    EXPECT_FALSE(read_hybrid_layers(std::string("M") + symbol, 2, problem));
    EXPECT_NE(problem.find(name), std::string::npos) << problem;
  }
}

TEST(LayerParts, MambaHeadsFollowFromTheWidth) {
  const Config config = good({"model.hybrid_layer_pattern=M*-M*-M-", "model.mamba_head_dim=8"});
  EXPECT_EQ(described(violations(config, 8)), "nothing");
  EXPECT_EQ(resolved(config, 8).model.mamba_num_heads, 16);
  EXPECT_EQ(resolved(good(), 8).model.mamba_num_heads, 0);
}

TEST(LayerParts, WithoutMlpItsWidthIsNotChecked) {
  const std::vector<std::string> layers{"model.hybrid_layer_pattern=M*M*M*M*", "model.mamba_head_dim=8",
                                        "model.ffn_hidden_size=97"};
  EXPECT_EQ(described(violations(good(layers), 8)), "nothing");
  std::vector<std::string> dense = layers;
  dense[0] = "model.hybrid_layer_pattern=M*M*M*M-";
  EXPECT_NE(described(violations(good(dense), 8)).find("model.ffn_hidden_size = 97"), std::string::npos);
}

}  // namespace metroplex::config::layer_parts_test
