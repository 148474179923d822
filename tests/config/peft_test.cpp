// The scale of adapters, and the rows of fused layers that belong to them.
#include "config/peft.h"

#include <algorithm>

#include "support.h"

namespace metroplex::config {
namespace {

TEST(Peft, ScaleIsAlphaOverTheRankOrItsRoot) {
  Peft peft;
  peft.lora_rank = 16, peft.lora_alpha = 8;
  EXPECT_EQ(peft.scale("decoder.layers.0.self_attention.q_proj"), 0.5);
  peft.use_rslora = true;
  EXPECT_EQ(peft.scale("decoder.layers.0.self_attention.q_proj"), 2.0);
}

// As get_pattern_key of PEFT: the first pattern that matches the name, or its end after a dot.
TEST(Peft, FirstMatchingPatternGivesRankAndAlpha) {
  Peft peft;
  peft.lora_rank = 16, peft.lora_alpha = 8;
  peft.rank_pattern = {"layers.0.self_attention.q_proj=4", "q_proj=2", R"(decoder\.layers\.[12]\..*_proj=32)"};
  peft.alpha_pattern = {"proj=3", "1.mlp.up_proj=12.5"};
  const std::string attention = "decoder.layers.0.self_attention.";
  EXPECT_EQ(peft.rank(attention + "q_proj"), 4);
  EXPECT_EQ(peft.rank("decoder.layers.2.self_attention.q_proj"), 2);
  EXPECT_EQ(peft.rank("decoder.layers.2.self_attention.k_proj"), 32);
  EXPECT_EQ(peft.rank(attention + "k_proj"), 16);
  EXPECT_EQ(peft.rank("xq_proj"), 16);
  EXPECT_EQ(peft.alpha(attention + "o_proj"), 8);
  EXPECT_EQ(peft.scale("decoder.layers.1.mlp.up_proj"), 12.5 / 32);
}

TEST(Peft, TargetsAreNamesOrTheirEnds) {
  Peft peft;
  peft.lora_rank = 1;
  EXPECT_TRUE(peft.adapts("decoder.layers.11.mlp.up_proj"));
  EXPECT_FALSE(peft.adapts("decoder.layers.1.mlp.experts.up_proj"));
  peft.lora_target_modules = {"layers.1.mlp.up_proj", "o_proj"};
  EXPECT_TRUE(peft.adapts("decoder.layers.1.mlp.up_proj"));
  EXPECT_FALSE(peft.adapts("decoder.layers.11.mlp.up_proj"));
  EXPECT_TRUE(peft.adapts("decoder.layers.11.self_attention.o_proj"));
  EXPECT_FALSE(peft.adapts("decoder.layers.11.self_attention.go_proj"));
  peft.lora_target_modules = {"up_proj"};
  EXPECT_TRUE(peft.adapts("decoder.layers.1.mlp.shared_experts.up_proj"));
  EXPECT_FALSE(peft.adapts("decoder.layers.1.mlp.experts.up_proj"));
  peft.lora_target_modules = {"experts.up_proj"};
  EXPECT_TRUE(peft.adapts("decoder.layers.1.mlp.experts.up_proj"));
  EXPECT_FALSE(peft.adapts("decoder.layers.1.mlp.shared_experts.up_proj"));
}

TEST(Peft, AdaptersOfSharedExpertsHaveTheWidthOfTheseExperts) {
  Model model;
  model.gated_linear_unit = true;
  model.hidden_size = 16, model.ffn_hidden_size = 40, model.moe_shared_expert_intermediate_size = 24;
  const auto shared = adapter_place(model, "decoder.layers.0.mlp.shared_experts.up_proj");
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->linear, "decoder.layers.0.mlp.shared_experts.linear_fc1");
  EXPECT_EQ(shared->box.rows(), 24);
  EXPECT_EQ(shared->box.begin, 24);
  const auto dense = adapter_place(model, "decoder.layers.0.mlp.up_proj");
  ASSERT_TRUE(dense);
  EXPECT_EQ(dense->box.rows(), 40);
}

TEST(Peft, ProjectionsOfExpertsHaveAdapters) {
  Model model;
  model.hidden_size = 16, model.num_moe_experts = 4, model.moe_latent_size = 6;
  const auto rows = [&](const std::string& module) {
    return adapter_place(model, "decoder.layers.0.mlp." + module)->box.rows();
  };
  EXPECT_EQ(rows("experts.down_proj"), 6);
  EXPECT_EQ(rows("fc1_latent_proj"), 6);
  EXPECT_EQ(rows("fc2_latent_proj"), 16);
  EXPECT_EQ(adapter_place(model, "decoder.layers.0.mlp.fc2_latent_proj")->linear,
            "decoder.layers.0.mlp.fc2_latent_proj");
  const std::vector<std::string> words = adapter_words(model);
  EXPECT_EQ(std::count(words.begin(), words.end(), "fc1_latent_proj"), 1);
  model.moe_latent_size = 0;
  EXPECT_EQ(adapter_words(model).size(), words.size() - 2);
}

TEST(Peft, ModulesToSaveAreEmbeddingAndHead) {
  const std::string untied = "model.untie_embeddings_and_output_weights=true", lora = "peft.lora_rank=2";
  EXPECT_TRUE(violations(good({untied, lora, "peft.modules_to_save=embed_tokens,lm_head"}), kWorld).empty());
  EXPECT_TRUE(violations(good({lora, "peft.modules_to_save=embed_tokens"}), kWorld).empty());
}

}  // namespace
}  // namespace metroplex::config
