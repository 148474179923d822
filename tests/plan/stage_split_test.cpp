#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/layout.h"
#include "plan/layout_names.h"

namespace metroplex::plan::stage_split_test {
namespace {

config::Parallel parallel(int64_t pp, int64_t vpp) {
  config::Parallel result;
  result.pipeline_model_parallel_size = pp;
  result.virtual_pipeline_model_parallel_size = vpp;
  return result;
}

std::vector<int64_t> counts(const std::vector<StageLayers>& stages) {
  std::vector<int64_t> result;
  for (const auto& stage : stages) result.push_back(stage.num_layers);
  return result;
}

void expect_covers(const std::vector<StageLayers>& stages, int64_t num_layers) {
  int64_t next = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    EXPECT_EQ(stages[s].first_layer, next);
    next += stages[s].num_layers;
    EXPECT_EQ(stages[s].has_embedding, s == 0);
    EXPECT_EQ(stages[s].has_loss, s + 1 == stages.size());
  }
  EXPECT_EQ(next, num_layers);
}

TEST(StageSplit, CoversEveryLayerOnceInModelOrder) {
  for (int64_t pp = 1; pp <= 6; ++pp) {
    for (int64_t vpp = 1; vpp <= 4; ++vpp) {
      const auto stages = split_stages(parallel(pp, vpp), pp * vpp * 3);
      ASSERT_EQ(stages.size(), static_cast<size_t>(pp * vpp));
      expect_covers(stages, pp * vpp * 3);
      EXPECT_EQ(stages.back().pp_rank, pp - 1);
      EXPECT_EQ(stages.back().chunk, vpp - 1);
    }
  }
}

TEST(StageSplit, PlacesBothUnevenEndsOfTwoRanksWithChunks) {
  auto p = parallel(2, 2);
  p.decoder_first_pipeline_num_layers = 4;
  p.decoder_last_pipeline_num_layers = 8;
  const auto stages = split_stages(p, 12);
  EXPECT_EQ(counts(stages), (std::vector<int64_t>{2, 4, 2, 4}));
  expect_covers(stages, 12);
}

TEST(StageSplit, CountsEmbeddingAndLossAsALayerEach) {
  auto p = parallel(4, 2);
  p.account_for_embedding_in_pipeline_split = true;
  p.account_for_loss_in_pipeline_split = true;
  const auto stages = split_stages(p, 14);
  EXPECT_EQ(counts(stages), (std::vector<int64_t>{1, 2, 2, 2, 2, 2, 2, 1}));
  expect_covers(stages, 14);
  EXPECT_EQ(counts(split_stages(
                [] {
                  auto q = parallel(2, 2);
                  q.account_for_embedding_in_pipeline_split = q.account_for_loss_in_pipeline_split = true;
                  return q;
                }(),
                2)),
            (std::vector<int64_t>{0, 1, 1, 0}));
}

TEST(StageSplit, FollowsALayoutStringAndInfersTheChunks) {
  auto p = parallel(4, 1);
  p.pipeline_model_parallel_layout = "Et*3|(tt|)*6,L";
  EXPECT_EQ(num_model_chunks(p), 2);
  const auto stages = split_stages(p, 15);
  EXPECT_EQ(counts(stages), (std::vector<int64_t>{3, 2, 2, 2, 2, 2, 2, 0}));
  expect_covers(stages, 15);
}

TEST(StageSplit, RefusesWhatDoesNotFitWithTheKeyNamed) {
  const auto refuses = [](config::Parallel parallel, int64_t layers, const std::string& words) {
    try {
      split_stages(parallel, layers);
      ADD_FAILURE() << "accepted: " << words;
    } catch (const base::Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refuses(parallel(4, 1), 10, "model.num_layers = 10: must be a multiple");
  refuses(parallel(2, 4), 12, "virtual_pipeline_model_parallel_size 4");
  refuses(parallel(2, 1), 0, "model.num_layers = 0: must be positive");
  refuses(parallel(0, 1), 4, "must be positive");
  auto p = parallel(4, 1);
  p.decoder_first_pipeline_num_layers = 12;
  refuses(p, 61, "49 layers for 3 ranks");
  p.decoder_first_pipeline_num_layers = -1;
  refuses(p, 61, "must not be negative");
  p.decoder_first_pipeline_num_layers = 70;
  refuses(p, 61, "which does not divide");
  p.decoder_first_pipeline_num_layers = 1;
  p.account_for_loss_in_pipeline_split = true;
  refuses(p, 61, "drop one of the two");
  p = parallel(2, 1);
  p.pipeline_model_parallel_layout = "Et|tL";
  p.decoder_last_pipeline_num_layers = 1;
  refuses(p, 2, "the layout defines all stages");
  p = parallel(2, 2);
  p.pipeline_model_parallel_layout = "Et|tL";
  refuses(p, 2, "contradicts");
  p = parallel(1, 1);
  p.decoder_first_pipeline_num_layers = p.decoder_last_pipeline_num_layers = 2;
  refuses(p, 4, "cannot be both");
}

TEST(Layout, WritesRepetitionsOut) {
  EXPECT_EQ(parse_layout("Et*2|(t|t)*2,L", 4).stages, parse_layout("Ett|t|tt|tL", 4).stages);
  EXPECT_EQ(parse_layout("E|*2t*0tL", 3).stages, parse_layout("E||tL", 3).stages);
}

TEST(Layout, RefusesEveryMalformedString) {
  for (const char* bad : {"Et|x|tL", "E(tt|L", "Ett)|L", "E((t)*2|)*2L", "E*|tL", "*3t|L", "E(t)|tL", "E()*2|tL",
                          "Et*99999999|L", "Et*2*3|L", "E t|L", "Et*1000000|(t)*1000000L", "(t", ")"}) {
    EXPECT_THROW(parse_layout(bad, 2), base::Error) << bad;
  }
  EXPECT_THROW(parse_layout("Et|t|L", 2), base::Error) << "three stages for two ranks";
}

TEST(Layout, AnEncoderIsReadByNameAndRefusedAsNoPartOfTheModel) {
  const PipelineLayout layout = test::layout_from_names({{"embedding", " Encoder "}, {"decoder", "loss"}}, 2);
  EXPECT_EQ(layout.count(LayerKind::encoder), 1);
  EXPECT_NE(test::layout_table(layout).find("embedding,encoder"), std::string::npos);
  EXPECT_THROW(check_layout(layout, 1, 0), base::Error);
  EXPECT_THROW(parse_layout("Ee|tL", 2), base::Error);
}

TEST(Layout, RefusesWhatIsNoModel) {
  const auto refuses = [](const char* text, int64_t pp, int64_t layers, int64_t mtp) {
    EXPECT_THROW(check_layout(parse_layout(text, pp), layers, mtp), base::Error) << text;
  };
  refuses("tE|tL", 2, 2, 0);
  refuses("Et|Lt", 2, 2, 0);
  refuses("EEt|tL", 2, 2, 0);
  refuses("Et|tLL", 2, 2, 0);
  refuses("Et|tL", 2, 3, 0);
  refuses("Et|tmL", 2, 2, 0);
  refuses("Et|tL", 2, 2, 1);
  refuses("Et|m|t|L", 2, 2, 1);
  refuses("Et|t|tm|mL", 2, 3, 2);
  refuses("Etm||||L|", 3, 1, 1);
  EXPECT_TRUE(check_layout(parse_layout("Et|t|tm|L", 2), 3, 1));
  EXPECT_FALSE(check_layout(parse_layout("Et|t|t|tmL", 2), 4, 1));
}

}  // namespace
}  // namespace metroplex::plan::stage_split_test
