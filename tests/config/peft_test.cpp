// The scale of adapters, and the rows of fused layers that belong to them.
#include "config/peft.h"

#include "support.h"

namespace metroplex::config {
namespace {

TEST(Peft, ScaleIsAlphaOverTheRankOrItsRoot) {
  Peft peft;
  peft.lora_rank = 16, peft.lora_alpha = 8;
  EXPECT_EQ(peft.lora_scale(), 0.5);
  peft.use_rslora = true;
  EXPECT_EQ(peft.lora_scale(), 2.0);
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

TEST(Peft, ModulesToSaveAreEmbeddingAndHead) {
  const std::string untied = "model.untie_embeddings_and_output_weights=true", lora = "peft.lora_rank=2";
  EXPECT_TRUE(violations(good({untied, lora, "peft.modules_to_save=embed_tokens,lm_head"}), kWorld).empty());
  EXPECT_TRUE(violations(good({lora, "peft.modules_to_save=embed_tokens"}), kWorld).empty());
}

}  // namespace
}  // namespace metroplex::config
