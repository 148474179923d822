// Combinations of attention and layer options: rejected ones with their messages, the layers with a window, and the
// sizes of latent attention.
#include <gtest/gtest.h>

#include "config/experts.h"
#include "config/support.h"
#include "config/validate.h"

namespace metroplex::config::attention_rules_test {

using Overrides = std::vector<std::string>;

// Latent attention with further overrides.
static Overrides latent(const Overrides& more) {
  Overrides all{"model.multi_latent_attention=true", "model.position_embedding_type=rope"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
static Overrides windows(const Overrides& more) {
  Overrides all{"model.window_size=4"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
static Overrides delta_net(const Overrides& more) {
  Overrides all{"model.experimental_attention_variant=gated_delta_net", "model.linear_attention_freq=4"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
Overrides ahead(const Overrides& more) {
  Overrides all{"model.mtp_num_layers=2", "model.position_embedding_type=rope"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Overrides apart(const std::string& layout) {
  return ahead({"model.num_layers=4", "parallel.pipeline_model_parallel_size=4",
                "parallel.pipeline_model_parallel_layout=" + layout});
}

TEST(AttentionRules, AcceptWhatDoes) {
  EXPECT_EQ(described(violations(good(ahead({"model.mtp_loss_scaling_factor=0.3"})), kWorld)), "nothing");
  for (const char* layout : {"Ett|tt|mm|L", "Ettttmm|||L", "Et|t|t||tmm|||L"})
    EXPECT_EQ(described(violations(good(apart(layout)), kWorld)), "nothing") << layout;
  EXPECT_EQ(described(violations(
                good(latent({"model.rope_type=rope", "model.mscale_all_dim=1", "model.rotary_scaling_factor=40"})),
                kWorld)),
            "nothing");
  EXPECT_EQ(described(violations(good(latent({"model.hidden_size=62", "model.qk_layernorm=true"})), kWorld)),
            "nothing");
  EXPECT_EQ(
      described(violations(good(windows({"model.window_attn_skip_freq=2", "model.softmax_type=learnable"})), kWorld)),
      "nothing");
  const Model model = resolved(good(latent({})), kWorld).model;
  EXPECT_EQ(model.kv_channels, 0);
  EXPECT_TRUE(model.yarn());
  EXPECT_FALSE(model.add_qkv_bias) << "projections to latents have none with add_bias_linear";
  EXPECT_FALSE(good(latent({"model.rope_type=rope"})).model.yarn());
}

TEST(AttentionRules, AWindowIsInTheLayersThatAreSaid) {
  Model model;
  model.num_layers = 5;
  const auto layers = [&](int64_t size, const char* said) {
    model.window_size = size, model.window_attn_skip_freq = said;
    std::string text;
    for (const bool window : window_layers(model)) text += window ? "w" : ".";
    return text;
  };
  EXPECT_EQ(layers(-1, ""), ".....");
  EXPECT_EQ(layers(3, ""), "wwwww");
  EXPECT_EQ(layers(0, "2"), "w.w.w");  // all but the 2nd and the 4th
  EXPECT_EQ(layers(3, "1"), ".....");
  EXPECT_EQ(layers(3, "[0]+[1,0]*2"), ".w.w.");
  EXPECT_THROW(layers(3, "[1]"), base::Error);
}

TEST(AttentionRules, LinearAttentionIsInTheLayersOfItsPattern) {
  Model model;
  model.num_layers = 5;
  EXPECT_EQ(linear_attention_layers(model), std::vector<bool>(5, false));
  model.experimental_attention_variant = AttentionVariant::gated_delta_net;
  model.linear_attention_freq = "4";
  EXPECT_EQ(linear_attention_layers(model), (std::vector<bool>{true, true, true, false, true}));
  model.linear_attention_freq = "[1,0]*2+[1]";
  EXPECT_EQ(linear_attention_layers(model), (std::vector<bool>{true, false, true, false, true}));
}

TEST(AttentionRules, LinearAttentionNamesWhatItExcludes) {
  EXPECT_EQ(described(violations(good(delta_net({"model.attention_output_gate=true"})), kWorld)), "nothing");
  const struct {
    Overrides overrides;
    const char* says;
  } kWrong[] = {
      {{"model.linear_key_head_dim=64"},
       "model.linear_key_head_dim = 64: has no effect without model.experimental_attention_variant = "
       "gated_delta_net"},
      {delta_net({"model.linear_attention_freq="}),
       "model.linear_attention_freq = (empty): must define which layers have linear attention, but it is empty"},
      {delta_net({"model.linear_attention_freq=[1,0]"}), "it has 2 entries for model.num_layers = 8"},
      {delta_net({"model.linear_attention_freq=1"}),
       "model.linear_attention_freq = 1: names no layer, which excludes model.experimental_attention_variant"},
      {delta_net({"model.linear_num_value_heads=24"}),
       "model.linear_num_value_heads = 24: must be a multiple of model.linear_num_key_heads = 16"},
      {delta_net({"model.linear_num_key_heads=2", "parallel.context_parallel_size=2"}),
       "model.linear_num_key_heads = 2: must be a multiple of 4, parallel.tensor_model_parallel_size = 2 times "
       "parallel.context_parallel_size = 2"},
      {delta_net(latent({})),
       "model.experimental_attention_variant = gated_delta_net: excludes "
       "model.multi_latent_attention"},
      {delta_net(ahead({})), "model.experimental_attention_variant = gated_delta_net: excludes model.mtp_num_layers"},
      {delta_net({"peft.lora_rank=2"}),
       "model.experimental_attention_variant = gated_delta_net: excludes peft.lora_rank above 0"},
      {delta_net({"parallel.hybrid_context_parallel=true"}),
       "model.experimental_attention_variant = gated_delta_net: excludes parallel.hybrid_context_parallel"},
      {{"model.attention_output_gate=true", "model.family=codegeex"},
       "model.attention_output_gate = true: excludes model.family = codegeex"}};
  for (const auto& wrong : kWrong) {
    const std::string text = described(violations(good(wrong.overrides), kWorld));
    EXPECT_NE(text.find(wrong.says), std::string::npos) << wrong.says << " in " << text;
  }
}

}  // namespace metroplex::config::attention_rules_test
