// Statistics of expert loads, and pictures against tests/golden/files/ (METROPLEX_UPDATE_GOLDEN=1 writes them).
#include "draw/experts.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/error_of.h"

namespace metroplex::draw::expert_picture_test {
namespace {

TEST(ExpertLoad, QuantilesAreCountsThatSoManyExpertsDoNotExceed) {
  std::vector<int64_t> tokens;
  for (int64_t i = 21; i >= 1; --i) tokens.push_back(i);
  const files::LoadQuantiles q = files::quantiles(tokens);
  EXPECT_EQ(q.min, 1);
  EXPECT_EQ(q.p10, 3);
  EXPECT_EQ(q.p50, 11);
  EXPECT_EQ(q.p90, 19);
  EXPECT_EQ(q.max, 21);
  EXPECT_EQ(files::quantiles({7}).p10, 7);
}

TEST(ExpertLoad, OfRanksIsThatOfTheirExperts) {
  EXPECT_EQ(files::tokens_of_ranks({1, 2, 3, 4}, 2), (std::vector<int64_t>{3, 7}));
  EXPECT_DOUBLE_EQ(files::imbalance({3, 7}), 1.4);
  EXPECT_DOUBLE_EQ(files::imbalance({0, 0}), 1);
}

// Two steps that each send everything to one expert are even in sum.
TEST(ExpertLoad, OfStepsIsThatOfAllTogetherOfAStepAndOfTheWorst) {
  const files::Imbalance even = files::imbalance_of_steps({{8, 0}, {0, 8}});
  EXPECT_DOUBLE_EQ(even.together, 1);
  EXPECT_DOUBLE_EQ(even.mean, 2);
  EXPECT_DOUBLE_EQ(even.worst, 2);
  const files::Imbalance uneven = files::imbalance_of_steps({{4, 4}, {6, 2}, {0, 0}});
  EXPECT_DOUBLE_EQ(uneven.together, 1.25);
  EXPECT_DOUBLE_EQ(uneven.mean, (1 + 1.5 + 1) / 3);
  EXPECT_DOUBLE_EQ(uneven.worst, 1.5);
}

// Two layers, four experts on two ranks: layer 1 even, layer 2 increasingly uneven; it drops rows beyond 40.
files::ExpertTrace trace() {
  files::ExpertTrace trace{{4, 2, 2, 1, {1, 2}}, {}};
  for (int64_t i = 1; i <= 5; ++i) {
    files::ExpertTraceStep step{i, {}, {0, 4 * i}};
    for (int source = 0; source < 2; ++source) step.tokens.insert(step.tokens.end(), {10, 10, 10, 10});
    for (int source = 0; source < 2; ++source) step.tokens.insert(step.tokens.end(), {10 + 2 * i, 10 - 2 * i, 10, 0});
    trace.steps.push_back(step);
  }
  return trace;
}

void compare_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(METROPLEX_SOURCE_DIR) + "/tests/golden/files/" + name;
  if (std::getenv("METROPLEX_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  std::ifstream stream(path, std::ios::binary);
  EXPECT_EQ(text, std::string(std::istreambuf_iterator<char>(stream), {})) << path;
}

TEST(ExpertPicture, LooksAsItDid) {
  compare_golden("experts.txt", draw_text(trace(), {}));
  compare_golden("experts_blocks.txt", draw_text(trace(), {.ink = Ink::blocks}));
  compare_golden("experts_colour.txt", draw_text(trace(), {.ink = Ink::colour}));
  compare_golden("experts_layer.txt", draw_text(trace(), {.layer = 2}));
  compare_golden("experts.svg", draw_svg(trace(), {}));
}

TEST(ExpertPicture, HeatIsLoadOverTheMeanOfItsRow) {
  const std::vector<Heat> heats = expert_heats(trace(), {.iteration = 5});
  ASSERT_EQ(heats.size(), 2U);  // one iteration has no history
  EXPECT_EQ(heats[0].rows[0].cells, (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(heats[0].rows[1].cells, (std::vector<double>{40 * 4 / 60.0, 0, 20 * 4 / 60.0, 0}));
  EXPECT_EQ(heats[1].rows[1].cells, (std::vector<double>{40 * 2 / 60.0, 20 * 2 / 60.0}));
}

// With 65 iterations two share a cell: it shows the mean of their imbalances, not the imbalance of their sum.
TEST(ExpertPicture, ACellOfSeveralIterationsIsTheirMean) {
  files::ExpertTrace turns{{2, 1, 1, 1, {0}}, {}};
  for (int64_t i = 1; i <= 65; ++i) turns.steps.push_back({i, {8 * (i % 2), 8 * ((i + 1) % 2)}, {0}});
  const std::vector<Heat> heats = expert_heats(turns, {});
  ASSERT_EQ(heats.size(), 2U);
  ASSERT_EQ(heats[1].rows[0].cells.size(), 64U);
  for (const double cell : heats[1].rows[0].cells) EXPECT_DOUBLE_EQ(cell, 2);
  EXPECT_EQ(heats[0].rows[0].remark, "  1.015   2.000   2.000    1.000   1.000   1.000    0.00%");
}

TEST(ExpertPicture, DrawsManyExpertsTogetherWhereTheLineIsShort) {
  files::ExpertTrace wide{{300, 2, 1, 1, {0}}, {{1, std::vector<int64_t>(300, 5), {0}}}};
  const std::string text = draw_text(wide, {.columns = 80});
  EXPECT_NE(text.find("experts in a cell"), std::string::npos) << text;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 100U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(ExpertPicture, RefusesWhatTheTraceHasNot) {
  const auto catch_error = [](const files::ExpertTrace& trace, const ExpertPictureOptions& options) -> std::string {
    return test::catch_error([&] { draw_text(trace, options); });
  };
  EXPECT_NE(catch_error(trace(), {.layer = 0}).find("the layers 1, 2"), std::string::npos);
  EXPECT_NE(catch_error(trace(), {.iteration = 9}).find("5 iterations from 1 to 5"), std::string::npos);
  EXPECT_NE(catch_error({trace().head, {}}, {}).find("no iterations yet"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::draw::expert_picture_test
