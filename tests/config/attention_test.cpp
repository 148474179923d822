// The attention operator on a GPU for every head size, type, mask and architecture, and the warnings of a run.
#include "config/attention.h"

#include <map>

#include "config/support.h"

namespace metroplex::config::attention_test {
namespace {

constexpr int kGpus[] = {80, 86, 89, 90, 100, 103, 120, 121};

// Limits of the operators, as in their sources.
bool flash_takes(int64_t d, int64_t dv, int gpu) {
  const bool no_backward = d > 192 && d <= 224 && (gpu == 86 || gpu == 89 || gpu >= 120);
  return d == dv && d % 8 == 0 && d <= 256 && !no_backward;
}
bool cudnn_has(int64_t d, int64_t dv, int gpu) {
  const bool sizes = (d <= 128 && dv <= 128) || (d == 192 && dv == 128);
  return sizes && d % 8 == 0 && dv % 8 == 0 && (gpu == 90 || gpu == 100 || gpu == 103);
}

TEST(Attention, IsLibtorchsForWhatItsOperatorsTake) {
  std::map<AttentionBy, int> chosen;
  for (const ParamsDtype dtype : {ParamsDtype::bf16, ParamsDtype::fp16, ParamsDtype::fp32, ParamsDtype::fp64}) {
    const bool half = dtype == ParamsDtype::bf16 || dtype == ParamsDtype::fp16, single = dtype == ParamsDtype::fp32;
    for (int64_t d = 1; d <= 300; ++d) {
      for (const int64_t dv : {d, int64_t{64}, int64_t{100}, int64_t{128}, int64_t{136}}) {
        for (const int gpu : kGpus) {
          for (const bool window : {false, true}) {
            for (const bool documents : {false, true}) {
              AttentionCase test_case{dtype, d, dv};
              test_case.window = window, test_case.documents = documents, test_case.capability = gpu;
              const AttentionBy by = gpu_attention(test_case).by;
              const bool cudnn = half && cudnn_has(d, dv, gpu) && !window && !documents;
              AttentionBy wanted = AttentionBy::own;
              if (half && flash_takes(d, dv, gpu)) wanted = AttentionBy::flash;
              const AttentionBy without = wanted;
              if (cudnn) wanted = AttentionBy::cudnn;
              if (single && d == dv && d % 8 == 0 && d <= 256 && !window && !documents)
                wanted = AttentionBy::memory_efficient;
              ASSERT_EQ(by, wanted) << d << " and " << dv << " on sm_" << gpu << (window ? " window" : "")
                                    << (documents ? " documents" : "");
              ++chosen[by];
              // With a fixed order of sums, or on an unknown GPU, all but cuDNN's.
              test_case.deterministic = true;
              if (cudnn) wanted = without;
              ASSERT_EQ(gpu_attention(test_case).by, wanted) << d << " and " << dv << " on sm_" << gpu;
              if (d > 192 && d <= 224) continue;
              test_case.deterministic = false, test_case.capability = 0;
              ASSERT_EQ(gpu_attention(test_case).by, wanted);
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(chosen.size(), 4u);
}

// For equal head sizes cuDNN's is chosen only for training lengths; for two head sizes, for all but a single key.
TEST(Attention, OfCudnnIsForLengthsInBlocksWhereFlashAttentionTakesTheOthers) {
  const auto by = [](int64_t d, int64_t queries, int64_t keys) {
    AttentionCase test_case{ParamsDtype::bf16, d, 128};
    test_case.capability = 90, test_case.queries = queries, test_case.keys = keys;
    return gpu_attention(test_case).by;
  };
  for (const int64_t s : {128, 1024, 8192}) EXPECT_EQ(by(128, s, s), AttentionBy::cudnn) << s;
  for (const int64_t s : {1, 2, 64, 127, 129, 1000, 8191}) EXPECT_EQ(by(128, s, s), AttentionBy::flash) << s;
  for (const int64_t keys : {1, 2, 128, 256, 1000}) EXPECT_EQ(by(128, 1, keys), AttentionBy::flash) << keys;
  EXPECT_EQ(by(128, 128, 256), AttentionBy::cudnn) << "a block of keys that other ranks have";
  EXPECT_EQ(by(128, 256, 64), AttentionBy::flash);
  EXPECT_EQ(by(128, 64, 256), AttentionBy::flash);
  for (const int64_t s : {2, 127, 128}) EXPECT_EQ(by(192, s, s), AttentionBy::cudnn) << s;
  EXPECT_EQ(by(192, 1, 77), AttentionBy::cudnn);
  EXPECT_EQ(by(192, 1, 1), AttentionBy::own);
}

TEST(Attention, IsOursWhereOneOfThemTakesNoneOfIt) {
  const AttentionCase plain{ParamsDtype::bf16, 128, 128};
  EXPECT_EQ(gpu_attention(plain).by, AttentionBy::flash);
  EXPECT_STREQ(gpu_attention(plain).why, "");
  const auto why = [&](const auto& change) {
    AttentionCase test_case = plain;
    change(test_case);
    EXPECT_EQ(gpu_attention(test_case).by, AttentionBy::own);
    return std::string(gpu_attention(test_case).why);
  };
  using C = AttentionCase;
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(why([](C& c) { c.dropout = true; }), "dropout"));
  EXPECT_TRUE(has(why([](C& c) { c.documents = c.dropout = true; }), "dropout"));
  EXPECT_TRUE(has(why([](C& c) { c.dtype = ParamsDtype::fp32, c.documents = true; }), "documents"));
  EXPECT_TRUE(has(why([](C& c) { c.dtype = ParamsDtype::fp32, c.window = true; }), "windows"));
  EXPECT_TRUE(has(why([](C& c) { c.plain_mask = false; }), "causal"));
  EXPECT_TRUE(has(why([](C& c) { c.capped = true; }), "capped"));
  EXPECT_TRUE(has(why([](C& c) { c.dtype = ParamsDtype::fp32, c.sinks = true; }), "sinks in fp32"));
  EXPECT_TRUE(has(why([](C& c) { c.v_head_dim = 64; }), "another head size"));
  EXPECT_TRUE(has(why([](C& c) { c.v_head_dim = 64, c.capability = 80; }), "another head size"));
  EXPECT_TRUE(has(why([](C& c) { c.v_head_dim = 64, c.capability = 90, c.deterministic = true; }), "fixed order"));
  EXPECT_TRUE(has(why([](C& c) { c.v_head_dim = 64, c.window = true, c.capability = 90; }), "windows"));
  EXPECT_TRUE(has(why([](C& c) { c.v_head_dim = 64, c.documents = true, c.capability = 90; }), "documents"));
  EXPECT_TRUE(has(why([](C& c) { c.head_dim = c.v_head_dim = 208, c.capability = 89; }), "backward"));
  EXPECT_TRUE(has(why([](C& c) { c.head_dim = c.v_head_dim = 264; }), "above 256"));
  EXPECT_TRUE(has(why([](C& c) { c.v_head_dim = 12; }), "not a multiple of 8"));
}

// The reservation for documents in a whole run, or none if other kernels process them.
TEST(Attention, RoomForDocumentsIsKnownBeforeTheRun) {
  const auto bound = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"precision.params_dtype=bf16", "model.kv_channels=64"});
    return document_bound(resolved(good(overrides), kWorld));
  };
  const int64_t s = resolved(good(), kWorld).train.seq_length;
  EXPECT_EQ(bound({}).per_sample, 0);
  EXPECT_EQ(bound({"data.reset_attention_mask=true"}).per_sample, (s + 127) / 128);
  EXPECT_EQ(bound({"data.reset_attention_mask=true", "train.seq_length=1000"}).per_sample, 8);
  EXPECT_EQ(bound({"data.reset_attention_mask=true", "data.max_documents_per_sample=50"}).per_sample, 50);
  EXPECT_EQ(bound({"data.max_documents_per_sample=50"}).per_sample, 0);
  EXPECT_EQ(bound({"data.reset_attention_mask=true", "model.attention_dropout=0.1"}).per_sample, 0);
  EXPECT_EQ(bound({"data.reset_attention_mask=true", "model.attn_logit_softcapping=30"}).per_sample, 0);
  for (const std::string exchange : {"p2p", "a2a"})
    EXPECT_EQ(bound({"data.reset_attention_mask=true", "data.max_documents_per_sample=50", "model.window_size=5",
                     "parallel.context_parallel_size=2", "parallel.cp_comm_type=" + exchange})
                  .per_sample,
              50)
        << exchange;
  EXPECT_FALSE(bound({"data.reset_attention_mask=true"}).must_fit);
  EXPECT_TRUE(bound({"data.reset_attention_mask=true", "train.cuda_graph_impl=full_iteration"}).must_fit);
}

TEST(Attention, OfARunIsNamedWithItsKeyWhereItIsOurs) {
  const auto of = [](const std::vector<std::string>& overrides) {
    return own_attention(resolved(good(overrides), kWorld));
  };
  EXPECT_EQ(of({"precision.params_dtype=bf16", "model.kv_channels=64"}), "");
  for (const auto& [override, text] : std::vector<std::pair<std::string, std::string>>{
           {"model.attention_dropout=0.1", "model.attention_dropout = 0.1"},
           {"model.kv_channels=12", "head size 12"},
           {"model.attn_logit_softcapping=30", "model.attn_logit_softcapping = 30"},
           {"precision.params_dtype=fp64", "params_dtype = fp64"}}) {
    const std::string said = of({"precision.params_dtype=bf16", "model.kv_channels=64", override});
    EXPECT_NE(said.find(text), std::string::npos) << said;
    EXPECT_NE(said.find("slower than libtorch's"), std::string::npos) << said;
  }
  EXPECT_EQ(of({"precision.params_dtype=bf16", "model.kv_channels=64", "model.softmax_type=learnable"}), "");
  EXPECT_NE(of({"model.kv_channels=64", "model.softmax_type=learnable"}).find("model.softmax_type = learnable"),
            std::string::npos);
  const auto of_ranks = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"model.kv_channels=64", "parallel.context_parallel_size=2"});
    return of(overrides);
  };
  const std::string documents = "data.reset_attention_mask=true", window = "model.window_size=5",
                    a2a = "parallel.cp_comm_type=a2a", half = "precision.params_dtype=bf16";
  for (const std::vector<std::string>& taken : {std::vector<std::string>{half},
                                                {half, documents},
                                                {half, window},
                                                {half, documents, window},
                                                {half, a2a},
                                                {half, a2a, documents, window}})
    EXPECT_EQ(of_ranks(taken), "");
  for (const auto& [overrides, text] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "context_parallel_size = 2 in fp32; precision.params_dtype = bf16"},
           {{documents, window}, "context_parallel_size = 2 in fp32"},
           {{a2a}, "context_parallel_size = 2 in fp32"},
           {{"precision.params_dtype=fp64"}, "precision.params_dtype = fp64"}}) {
    const std::string said = of_ranks(overrides);
    EXPECT_NE(said.find(text), std::string::npos) << said;
  }
  std::vector<std::string> latent{"precision.params_dtype=bf16",
                                  "model.multi_latent_attention=true",
                                  "model.kv_lora_rank=16",
                                  "model.qk_head_dim=128",
                                  "model.qk_pos_emb_head_dim=64",
                                  "model.v_head_dim=128",
                                  "model.position_embedding_type=rope"};
  EXPECT_EQ(own_attention(resolved(good(latent), kWorld), 90), "");
  latent.emplace_back("run.deterministic_mode=true");
  const std::string fixed = own_attention(resolved(good(latent), kWorld), 90);
  EXPECT_NE(fixed.find("run.deterministic_mode = true"), std::string::npos) << fixed;
  EXPECT_EQ(own_attention(resolved(good(latent), kWorld), 80).find("deterministic"), std::string::npos);
  for (const auto& [override, text] : std::vector<std::pair<std::string, std::string>>{
           {"data.reset_attention_mask=true", "data.reset_attention_mask = true"},
           {"model.window_size=5", "model.window_size = 5"},
           {"model.attention_chunk_size=5", "model.attention_chunk_size = 5"}}) {
    EXPECT_EQ(of({"precision.params_dtype=bf16", "model.kv_channels=64", override}), "");
    const std::string said = of({"model.kv_channels=64", override});
    EXPECT_NE(said.find(text), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace metroplex::config::attention_test
