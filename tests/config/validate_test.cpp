// Rejected configurations with their messages, and the values that the accepted ones resolve to.
#include "config/validate.h"

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "config/fields.h"
#include "config/parallel.h"
#include "config/support.h"
#include "config/rules_transformer.h"

namespace metroplex::config::validate_test {

TEST(Validate, TheConfigurationThatTheseTestsSpoilIsGood) {
  EXPECT_EQ(described(violations(good(), kWorld)), "nothing");
  EXPECT_NO_THROW(check(good(), kWorld));
}

TEST(Validate, ListsAllViolationsInOneError) {
  const std::string error = catch_error([] {
    check(good({"optim.min_lr=1", "data.split=a", "model.num_layers=7", "checkpoint.save_retain_interval=6"}),
          kWorld);
  });
  EXPECT_EQ(error.rfind("[config] ", 0), 0u) << error;
  for (const char* key : {"optim.min_lr = 1.0: ", "data.split = a: ", "model.num_layers = 7: ",
                          "checkpoint.save_retain_interval = 6: "}) {
    EXPECT_NE(error.find(key), std::string::npos) << key << error;
  }
  EXPECT_NE(error.find("4 reasons"), std::string::npos) << error;
}

TEST(Validate, AKeyOutsideItsOwnLimitsIsBlamedOnce) {
  for (const char* wrong : {"model.num_layers=0", "parallel.tensor_model_parallel_size=-3",
                            "train.micro_batch_size=0", "train.seq_length=-1", "model.num_attention_heads=0"}) {
    EXPECT_EQ(violations(good({wrong}), kWorld).size(), 1u) << wrong << described(violations(good({wrong}), kWorld));
  }
}

TEST(Validate, RefusesAWorldOfNoRanks) {
  EXPECT_EQ(violations(good(), 0).at(0).key, "run.nproc");
  EXPECT_EQ(violations(good(), -8).size(), 1u);
}

TEST(Validate, AcceptsWhatTheRulesAllow) {
  const std::vector<std::vector<std::string>> cases = {
      {"parallel.virtual_pipeline_model_parallel_size=2", "parallel.overlap_p2p_comm=true"},
      {"parallel.virtual_pipeline_model_parallel_size=2", "parallel.microbatch_group_size_per_vp_stage=4",
       "train.global_batch_size=12"},
      {"parallel.decoder_first_pipeline_num_layers=3"},
      {"parallel.decoder_first_pipeline_num_layers=3", "parallel.decoder_last_pipeline_num_layers=5"},
      {"parallel.account_for_embedding_in_pipeline_split=true", "parallel.account_for_loss_in_pipeline_split=true"},
      {"parallel.pipeline_model_parallel_layout=Ett|(tt|)*2,ttL"},
      {"parallel.sequence_parallel=true"},
      {"parallel.sequence_parallel=true", "parallel.tensor_model_parallel_size=1", "train.seq_length=33"},
      {"train.global_batch_size=7", "train.decrease_batch_size_if_needed=true"},
      {"train.global_batch_size=0", "train.step_batch_size_schedule=0:8 1.5K:16"},
      {"train.rampup_batch_size=4 2 100", "train.train_iters=0", "train.train_samples=99"},
      {"data.mock_data=false", "data.data_path=a,b,c"},
      {"data.mock_data=false", "data.data_path=0.3,a,0.7,b"},
      {"data.mock_data=false", "data.train_data_path=a", "data.valid_data_path=b"},
      {"data.dataloader_type=cyclic"},
      {"data.dataloader_type=cyclic", "data.data_sharding=false", "checkpoint.load=x"},
      {"optim.weight_decay_incr_style=cosine", "optim.start_weight_decay=0", "optim.end_weight_decay=0.1"},
      {"optim.lr_decay_style=WSD", "optim.lr_wsd_decay_iters=3"},
      {"parallel.order=tp-cp-ep-pp-dp"},
      {"precision.params_dtype=fp64"},
      {"model.kv_channels=10", "model.hidden_size=66", "model.ffn_hidden_size=64"},
      {"model.family=llama"},
  };
  for (const auto& overrides : cases) {
    EXPECT_EQ(described(violations(good(overrides), kWorld)), "nothing") << overrides[0];
  }
}

TEST(Resolved, FillsWhatIsDerived) {
  const Config config = resolved(good({"parallel.pipeline_model_parallel_layout=Ett|(tt|)*2,ttL"}), kWorld);
  EXPECT_EQ(config.model.ffn_hidden_size, 256);
  EXPECT_EQ(config.model.kv_channels, 16);
  EXPECT_EQ(config.model.num_query_groups, 4);
  EXPECT_EQ(config.model.max_position_embeddings, 32);
  EXPECT_EQ(config.parallel.vpp(), 2);
  EXPECT_EQ(config.parallel.pipeline_schedule, Schedule::interleaved);
  EXPECT_EQ(config.parallel.expert_tensor_parallel_size, 2);
  EXPECT_EQ(config.parallel.microbatch_group_size_per_vp_stage, 2);
  EXPECT_EQ(config.parallel.ddp_bucket_size, 40000000);
  EXPECT_EQ(config.optim.lr_decay_iters, 10);
  EXPECT_EQ(config.optim.end_weight_decay, 0.01);
  EXPECT_EQ(resolved(good({"train.global_batch_size=0", "train.micro_batch_size=3"}), kWorld).train.global_batch_size,
            6);
  EXPECT_EQ(resolved(good({"parallel.tensor_model_parallel_size=1", "parallel.sequence_parallel=true"}), kWorld)
                .parallel.sequence_parallel,
            false);
  EXPECT_EQ(resolved(good(), 256).parallel.ddp_bucket_size, 64000000);
}

// int(8/3 h / 64) * 64 at Llama's published widths: 7B has 11008, 13B 13824 (Megatron's formula gives 10880 and
// 13632).
TEST(Resolved, GatedWidthIsMegatronsFormula) {
  const std::vector<std::pair<int64_t, int64_t>> widths = {
      {4096, 10880}, {5120, 13632}, {288, 768}, {64, 128}, {24, 64}};
  for (const auto& [hidden, ffn] : widths) {
    const Config config = good({"model.hidden_size=" + std::to_string(hidden), "model.gated_linear_unit=true"});
    EXPECT_EQ(resolved(config, kWorld).model.ffn_hidden_size, ffn) << hidden;
  }
}

TEST(Resolved, IsItsOwnFixedPointAndStaysValidAndLoadsBack) {
  for (const auto& overrides : std::vector<std::vector<std::string>>{
           {},
           {"model.family=llama", "parallel.virtual_pipeline_model_parallel_size=2"},
           {"parallel.pipeline_model_parallel_layout=Ett|(tt|)*2,ttL"},
           {"parallel.pipeline_model_parallel_layout=Etttt|ttttL"},
           {"train.global_batch_size=0", "train.step_batch_size_schedule=0:8 1K:16"},
           {"train.train_iters=0", "train.train_samples=100", "optim.lr_decay_style=cosine"},
           {"optim.weight_decay_incr_style=linear", "optim.start_weight_decay=0", "optim.end_weight_decay=0.1"}}) {
    const Config once = resolved(good(overrides), kWorld);
    EXPECT_EQ(described(violations(once, kWorld)), "nothing");
    EXPECT_EQ(differences(resolved(once, kWorld), once), std::vector<std::string>{});
    EXPECT_EQ(differences(parse(dump(once)), once), std::vector<std::string>{});
  }
}

TEST(BatchSizes, AreThoseTheRunPassesThrough) {
  EXPECT_EQ(batch_sizes(good(), kWorld), (std::vector<int64_t>{8}));
  EXPECT_EQ(batch_sizes(good({"train.global_batch_size=0"}), kWorld), (std::vector<int64_t>{2}));
  EXPECT_EQ(batch_sizes(good({"train.step_batch_size_schedule=250B:16,0:8 0.5T:1.5K"}), kWorld),
            (std::vector<int64_t>{8, 16, 1500}));
  EXPECT_EQ(batch_sizes(good({"train.rampup_batch_size=4 2 100"}), kWorld), (std::vector<int64_t>{4, 6, 8}));
}

TEST(Layout, UnrollsGroupsThenLetters) {
  std::string problem;
  EXPECT_EQ(unrolled_layout("Ettt|(tt|)*3,m|L", problem),
            (std::vector<std::string>{"Ettt", "tt", "tt", "tt", "m", "L"}));
  EXPECT_EQ(unrolled_layout("E|t*3|(t|)*5mL", problem),
            (std::vector<std::string>{"E", "ttt", "t", "t", "t", "t", "t", "mL"}));
  EXPECT_EQ(unrolled_layout("E(t*2|)*2tL", problem), (std::vector<std::string>{"Ett", "tt", "tL"}));
  EXPECT_EQ(unrolled_layout("Et|*3L", problem), (std::vector<std::string>{"Et", "", "", "L"}));
  for (const char* bad : {"E((t)*2)*2L", "E(t)L", "E()*2L", "Et*L", "E t"}) {
    EXPECT_EQ(unrolled_layout(bad, problem), std::nullopt) << bad;
  }
}

// The stage rules against every placement recorded from Megatron's TransformerConfig.
TEST(TransformerRules, AgreeWithEveryRecordedPlacementOfLayers) {
  std::ifstream stream(METROPLEX_SOURCE_DIR "/tests/vectors/layers.json");
  const auto file = nlohmann::json::parse(stream);
  int refused = 0;
  for (const auto& one : file.at("cases")) {
    TransformerSettings settings;
    settings.num_layers = one.at("num_layers");
    settings.num_attention_heads = 4;
    settings.pp = one.at("pp");
    const auto maybe = [&](const char* name, std::optional<int64_t>& member) {
      if (!one.at(name).is_null()) member = one.at(name).get<int64_t>();
    };
    maybe("vpp", settings.vpp);
    maybe("num_layers_in_first", settings.first_stage_layers);
    maybe("num_layers_in_last", settings.last_stage_layers);
    settings.account_for_embedding = one.at("account_for_embedding");
    settings.account_for_loss = one.at("account_for_loss");
    const bool accepted = transformer_violations(settings).empty();
    EXPECT_EQ(accepted, one.at("config_ok").get<bool>()) << one.dump().substr(0, 300);
    refused += accepted ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
}

TEST(Examples, PassTheChecks) {
  const std::string folder = METROPLEX_SOURCE_DIR "/examples/";
  EXPECT_NO_THROW(check(load(folder + "gpt2_124m.yaml"), 1));
  const Config tiny = load(folder + "llama_tiny.yaml");
  EXPECT_NO_THROW(check(tiny, 8));
  const Config full = resolved(tiny, 8);
  EXPECT_EQ(full.parallel.pipeline_schedule, Schedule::interleaved);
  EXPECT_EQ(full.model.ffn_hidden_size, 768);
  const Model& m = full.model;
  const int64_t attention =
      m.hidden_size * m.hidden_size * 2 + 2 * m.hidden_size * m.num_query_groups * m.kv_channels;
  const int64_t parameters =
      m.num_layers * (attention + 3 * m.hidden_size * m.ffn_hidden_size) + 2 * m.vocab_size * m.hidden_size;
  EXPECT_GT(parameters, 5000000);
  EXPECT_LT(parameters, 10000000);
}

}  // namespace metroplex::config::validate_test
