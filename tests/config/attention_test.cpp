// Which attention a GPU computes with, for every head size, type, mask and architecture, and what a run is told.
#include "config/attention.h"

#include "config/support.h"

namespace metroplex::config::attention_test {
namespace {

constexpr int kGpus[] = {80, 86, 89, 90, 100, 103, 120, 121};

TEST(Attention, IsLibtorchsForWhatItsOperatorsTake) {
  for (const ParamsDtype dtype : {ParamsDtype::bf16, ParamsDtype::fp16, ParamsDtype::fp32, ParamsDtype::fp64}) {
    for (int64_t d = 1; d <= 300; ++d) {
      for (const int gpu : kGpus) {
        const AttentionBy by = gpu_attention({dtype, d, d, true, true, false, false, gpu}).by;
        const bool half = dtype == ParamsDtype::bf16 || dtype == ParamsDtype::fp16;
        const bool no_backward = d > 192 && d <= 224 && (gpu == 86 || gpu == 89 || gpu >= 120);
        AttentionBy wanted = AttentionBy::own;
        if (d % 8 == 0 && d <= 256 && half) wanted = no_backward ? AttentionBy::own : AttentionBy::flash;
        if (d % 8 == 0 && d <= 256 && dtype == ParamsDtype::fp32) wanted = AttentionBy::memory_efficient;
        ASSERT_EQ(by, wanted) << d << " on sm_" << gpu;
        ASSERT_EQ(attention_depends_on_gpu(d), d > 192 && d <= 224);
      }
    }
  }
}

TEST(Attention, IsOursWhereOneOfThemTakesNoneOfIt) {
  const AttentionCase plain{ParamsDtype::bf16, 128, 128};
  EXPECT_EQ(gpu_attention(plain).by, AttentionBy::flash);
  EXPECT_STREQ(gpu_attention(plain).why, "");
  AttentionCase c = plain;
  c.dropout = true;
  EXPECT_NE(std::string(gpu_attention(c).why).find("dropout"), std::string::npos);
  c = plain, c.documents = true;
  EXPECT_NE(std::string(gpu_attention(c).why).find("documents"), std::string::npos);
  c = plain, c.plain_mask = false;
  EXPECT_NE(std::string(gpu_attention(c).why).find("causal"), std::string::npos);
  c = plain, c.plain_scores = false;
  EXPECT_NE(std::string(gpu_attention(c).why).find("windows"), std::string::npos);
  c = plain, c.v_head_dim = 64;
  EXPECT_NE(std::string(gpu_attention(c).why).find("another head size"), std::string::npos);
  c = plain, c.head_dim = c.v_head_dim = 208, c.capability = 89;
  EXPECT_NE(std::string(gpu_attention(c).why).find("backward"), std::string::npos);
  c = plain, c.head_dim = c.v_head_dim = 264;
  EXPECT_NE(std::string(gpu_attention(c).why).find("above 256"), std::string::npos);
}

TEST(Attention, OfARunIsNamedWithItsKeyWhereItIsOurs) {
  const auto of = [](const std::vector<std::string>& overrides) {
    return own_attention(resolved(good(overrides), kWorld));
  };
  EXPECT_EQ(of({"precision.params_dtype=bf16", "model.kv_channels=64"}), "");
  for (const auto& [override, text] : std::vector<std::pair<std::string, std::string>>{
           {"model.attention_dropout=0.1", "model.attention_dropout = 0.1"},
           {"data.reset_attention_mask=true", "data.reset_attention_mask = true"},
           {"model.kv_channels=12", "head size 12"},
           {"model.window_size=5", "model.window_size = 5"},
           {"model.attn_logit_softcapping=30", "model.attn_logit_softcapping = 30"},
           {"model.softmax_type=learnable", "model.softmax_type = learnable"},
           {"precision.params_dtype=fp64", "params_dtype = fp64"}}) {
    const std::string said = of({"precision.params_dtype=bf16", "model.kv_channels=64", override});
    EXPECT_NE(said.find(text), std::string::npos) << said;
    EXPECT_NE(said.find("slower than libtorch's"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace metroplex::config::attention_test
