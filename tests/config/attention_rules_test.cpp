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
Overrides ahead(const Overrides& more) {
  Overrides all{"model.mtp_num_layers=2", "model.position_embedding_type=rope"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Overrides apart(const std::string& layout) {
  return ahead({"model.num_layers=4", "parallel.pipeline_model_parallel_size=4",
                "parallel.pipeline_model_parallel_layout=" + layout});
}

TEST(AttentionRules, RefuseWhatDoesNotGoTogether) {
  const std::vector<Wrong> cases = {
      {{"model.q_lora_rank=8"}, "model.q_lora_rank", "has no effect without model.multi_latent_attention"},
      {{"model.v_head_dim=8"}, "model.v_head_dim", "has no effect without model.multi_latent_attention"},
      {{"model.multi_latent_attention=true"}, "model.position_embedding_type", "must be rope"},
      {latent({"model.num_query_groups=2"}), "model.num_query_groups", "every head has its own keys"},
      {latent({"model.kv_channels=16"}), "model.kv_channels", "model.qk_head_dim + model.qk_pos_emb_head_dim"},
      {latent({"model.qk_pos_emb_head_dim=5"}), "model.qk_pos_emb_head_dim", "must be even"},
      {latent({"model.rotary_percent=0.5"}), "model.rotary_percent", "must be 1"},
      {latent({"model.use_rope_scaling=true"}), "model.use_rope_scaling", "excludes yarn"},
      {latent({"model.beta_fast=1", "model.beta_slow=2"}), "model.beta_fast", "must exceed model.beta_slow = 2"},
      {latent({"model.rope_type=rope", "model.mscale=0.5"}), "model.mscale", "has no effect without model.rope_type"},
      {latent({"model.rope_type=rope", "model.rotary_scaling_factor=4"}), "model.rotary_scaling_factor",
       "has no effect without model.rope_type"},
      {{"model.rotary_scaling_factor=4"}, "model.rotary_scaling_factor", "has no effect without model.rope_type"},
      {{"model.rope_type=yarn"}, "model.rope_type", "needs model.position_embedding_type = rope"},
      {{"model.rotary_interleaved=true"}, "model.rotary_interleaved", "needs model.position_embedding_type = rope"},
      {{"model.rotary_seq_len_interpolation_factor=2"},
       "model.rotary_seq_len_interpolation_factor",
       "needs model.position_embedding_type = rope"},
      {{"model.window_attn_skip_freq=2"}, "model.window_attn_skip_freq", "has no effect without model.window_size"},
      {{"model.rotary_base_local=100"}, "model.rotary_base_local", "has no effect without model.window_size"},
      {windows({"model.window_attn_skip_freq=[1,0]"}), "model.window_attn_skip_freq", "2 entries"},
      {windows({"model.window_attn_skip_freq=0"}), "model.window_attn_skip_freq", "neither a whole number"},
      {windows({"model.rotary_base_local=100"}), "model.rotary_base_local", "needs model.position_embedding_type"},
      {{"model.window_size=-2"}, "model.window_size", "at least -1"},
      {{"model.softmax_type=sigmoid"}, "model.softmax_type", "one of vanilla, off-by-one, learnable"},
      {{"model.softmax_type=learnable", "parallel.context_parallel_size=2", "parallel.cp_comm_type=a2a"},
       "model.softmax_type",
       "excludes parallel.cp_comm_type = a2a"},
      {{"model.sandwich_norm=true", "model.num_moe_experts=4", "model.add_bias_linear=false"},
       "model.sandwich_norm",
       "excludes experts"},
      {{"model.activation_func_clamp_value=2"}, "model.activation_func_clamp_value", "without model.gated_linear"},
      {{"model.glu_linear_offset=1"}, "model.glu_linear_offset", "without model.gated_linear_unit"},
      {{"model.num_moe_experts=4", "model.add_bias_linear=false", "model.moe_router_group_score_topk=2"},
       "model.moe_router_group_score_topk",
       "without model.moe_router_num_groups"},
      {{"model.num_moe_experts=4", "model.add_bias_linear=false", "model.moe_router_topk_normalization=never"},
       "model.moe_router_topk_normalization",
       "sigmoid or sqrtsoftplus"},
      {{"model.mtp_loss_scaling_factor=0.2"}, "model.mtp_loss_scaling_factor", "without model.mtp_num_layers"},
      {{"model.mtp_num_layers=1"}, "model.mtp_num_layers", "learned_absolute"},
      {ahead({"model.window_size=4"}), "model.mtp_num_layers", "excludes model.window_size"},
      {ahead({"parallel.context_parallel_size=2"}), "model.mtp_num_layers", "excludes context parallelism"},
      {ahead({"parallel.hybrid_context_parallel=true"}), "model.mtp_num_layers", "excludes context parallelism"},
      {apart("Ettmm|t|t|L"), "parallel.pipeline_model_parallel_layout", "after every t and before the L"},
      {apart("Ett|tm|m|L"), "parallel.pipeline_model_parallel_layout", "must have all m in one stage"},
      {apart("Ett|mmt||tL"), "parallel.pipeline_model_parallel_layout", "must have all m in one stage"},
      {apart("Ettttmm|||||||L"), "parallel.pipeline_model_parallel_layout", "last stage of a rank"},
      {ahead({"train.seq_length=2"}), "model.mtp_num_layers", "must be below train.seq_length = 2"},
      {ahead({"model.mtp_num_layers=65"}), "model.mtp_num_layers", "at most 64"},
      {{"model.family=codegeex", "model.mtp_num_layers=1"}, "model.mtp_num_layers", "excludes model.family"},
  };
  for (const Wrong& wrong : cases) expect_refused(wrong);
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

}  // namespace metroplex::config::attention_rules_test
