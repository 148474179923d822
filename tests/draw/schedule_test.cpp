// The replay against closed forms, and pictures against tests/golden/plan/ (METROPLEX_UPDATE_GOLDEN=1 rewrites them).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "draw/schedule.h"
#include "plan/schedules/registry.h"
#include "replay/timeline.h"

namespace metroplex::draw::timeline_test {
namespace {

constexpr double kExact = 1e-12;  // times are sums of a few hundred small binary fractions

TEST(Timeline, HasTheBubbleOfTheFormulaForEqualStages) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (const int microbatches : {stages, 2 * stages, 3 * stages}) {
      for (const int chunks : {1, 2, 4}) {
        for (const char* name : {"gpipe", "1f1b", "interleaved"}) {
          if ((chunks > 1) != (std::string(name) == "interleaved") || (chunks > 1 && stages == 1)) continue;
          const auto table = plan::build_schedule(name, {stages, chunks, microbatches});
          const auto timeline = replay::replay(table, {.forward = 1, .backward = 2});
          const double formula = replay::formula_bubble_share(stages, chunks, microbatches, false);
          EXPECT_NEAR(timeline.total_bubble_share, formula, kExact) << name << stages << chunks;
          EXPECT_NEAR(timeline.length, 3.0 * microbatches + 3.0 * (stages - 1) / chunks, 1e-9);
        }
      }
    }
  }
}

TEST(Timeline, HasTheBubbleOfTheFormulaForEveryGroupSize) {
  for (const int group : {4, 6, 8, 12, 16}) {
    const auto table = plan::build_schedule("interleaved", {4, 3, 16, group});
    const double formula = replay::formula_bubble_share(4, 3, 16, false);
    EXPECT_NEAR(replay::replay(table, {}).total_bubble_share, formula, kExact) << group;
  }
}

TEST(Timeline, HasTheBubbleOfTheFormulaForWeightActions) {
  for (const int stages : {2, 4, 8}) {
    for (const std::string name : {"zb_h1", "zb_v", "dualpipe_v"}) {
      const int chunks = name == "zb_h1" ? 1 : 2;
      const auto table = plan::build_schedule(name, {stages, chunks, 2 * stages});
      const auto timeline = replay::replay(table, {.forward = 1, .backward = 2, .weight = 1});
      const double formula = replay::formula_bubble_share(stages, chunks, 2 * stages, true);
      EXPECT_NEAR(timeline.total_bubble_share, formula, kExact) << name << stages;
    }
  }
}

TEST(Timeline, IdlesExactlyTheWarmUpAndTheCoolDown) {
  const auto timeline = replay::replay(plan::build_schedule("1f1b", {4, 1, 8}), {.forward = 1, .backward = 1});
  for (const double busy : timeline.busy) EXPECT_DOUBLE_EQ(busy, 16);
  EXPECT_DOUBLE_EQ(timeline.length, 16 + 2 * 3);
}

TEST(Timeline, RespectsEveryDependency) {
  const auto table = plan::build_schedule("interleaved", {3, 2, 6});
  const replay::TimelineCosts costs{.forward = 1, .backward = 2, .p2p = 0.25};
  const auto timeline = replay::replay(table, costs);
  std::vector<std::vector<double>> forward_end(6, std::vector<double>(6)), backward_end(forward_end);
  for (size_t rank = 0; rank < 3; ++rank) {
    double clock = 0;
    for (const auto& [action, start, end] : timeline.ranks[rank]) {
      if (!plan::is_compute(action.kind)) continue;
      EXPECT_GE(start, clock) << "one action at a time";
      clock = end;
      auto& ends = action.kind == plan::ActionKind::forward ? forward_end : backward_end;
      ends[static_cast<size_t>(action.chunk) * 3 + rank][static_cast<size_t>(action.microbatch)] = end;
    }
  }
  for (size_t stage = 0; stage + 1 < 6; ++stage) {
    for (size_t m = 0; m < 6; ++m) {
      EXPECT_GE(forward_end[stage + 1][m] - 0.5, forward_end[stage][m] + 0.25);
      EXPECT_GE(backward_end[stage][m] - 1, backward_end[stage + 1][m] + 0.25);
    }
  }
}

TEST(Timeline, IsNeverShorterWhenRanksBlockInTheirSends) {
  for (const char* name : {"gpipe", "1f1b", "interleaved"}) {
    const int chunks = std::string(name) == "interleaved" ? 2 : 1;
    const auto table = plan::build_schedule(name, {4, chunks, 8});
    const double free = replay::replay(table, {.p2p = 0.1}).length;
    const double blocking = replay::replay(table, {.p2p = 0.1, .blocking_p2p = true}).length;
    EXPECT_GT(blocking, free) << name;
  }
}

TEST(Timeline, OfASlowStageIsThatStageAndItsNeighbours) {
  const auto table = plan::build_schedule("1f1b", {2, 1, 10});
  const auto timeline = replay::replay(table, {.forward = 1, .backward = 1, .stage_scale = {1, 3}});
  EXPECT_DOUBLE_EQ(timeline.busy[1], 60);
  EXPECT_DOUBLE_EQ(timeline.length, 62) << "one forward before and one backward after the slow rank";
}

TEST(Timeline, RefusesTimesThatAreNoneAndTablesThatDoNotEnd) {
  auto table = plan::build_schedule("1f1b", {2, 1, 4});
  EXPECT_THROW(replay::replay(table, {.forward = -1}), base::Error);
  EXPECT_THROW(replay::replay(table, {.p2p = 0.0 / 0.0}), base::Error);
  EXPECT_THROW(replay::replay(table, {.stage_scale = {1}}), base::Error);
  table.ranks[0].clear();
  EXPECT_THROW(replay::replay(table, {}), base::Error);
  EXPECT_THROW(replay::replay(table, {.blocking_p2p = true}), base::Error);
}

TEST(Timeline, CountsLiveActivationsAsVerifyDoes) {
  EXPECT_EQ(replay::replay(plan::build_schedule("1f1b", {4, 1, 8}), {}).peak_live_activations,
            (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(replay::replay(plan::build_schedule("interleaved", {4, 2, 8}), {}).peak_live_activations,
            (std::vector<int>{11, 9, 7, 5}));
}

void compare_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(METROPLEX_SOURCE_DIR) + "/tests/golden/plan/" + name;
  if (std::getenv("METROPLEX_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(text, expected.str()) << path;
}

struct Picture {
  const char* schedule;
  plan::ScheduleRequest request;
  const char* file;
};

TEST(Draw, GivesTheGoldenPictures) {
  const Picture pictures[] = {{"none", {1, 1, 4}, "none"},
                              {"gpipe", {4, 1, 4}, "gpipe"},
                              {"1f1b", {4, 1, 8}, "1f1b"},
                              {"interleaved", {4, 2, 8}, "interleaved"},
                              {"interleaved", {2, 2, 8, 4}, "interleaved_group4"},
                              {"1f1b", {3, 1, 4, 0, true}, "1f1b_forward_only"}};
  for (const Picture& picture : pictures) {
    const auto table = plan::build_schedule(picture.schedule, picture.request);
    const auto timeline = replay::replay(table, {});
    compare_golden(std::string(picture.file) + ".txt", draw_text(table, timeline, {}));
    compare_golden(std::string(picture.file) + ".svg", draw_svg(table, timeline));
  }
}

TEST(Draw, KeepsToTheColumnsGivenAndRowsAreEquallyLong) {
  const auto table = plan::build_schedule("1f1b", {4, 1, 64});
  const auto timeline = replay::replay(table, {});
  for (const int columns : {20, 80, 1000}) {
    std::istringstream lines(draw_text(table, timeline, {.max_columns = columns}));
    std::string line;
    size_t bar = 0;
    while (std::getline(lines, line)) {
      const size_t begin = line.find('|'), end = line.rfind('|');
      if (begin == std::string::npos) continue;
      EXPECT_LE(end - begin - 1, static_cast<size_t>(columns));
      if (bar != 0) { EXPECT_EQ(end - begin, bar); }
      bar = end - begin;
    }
    EXPECT_GT(bar, 0u);
  }
}

TEST(Draw, HasColorsOnlyWhenAsked) {
  const auto table = plan::build_schedule("1f1b", {2, 1, 2});
  const auto timeline = replay::replay(table, {});
  EXPECT_EQ(draw_text(table, timeline, {}).find('\033'), std::string::npos);
  EXPECT_NE(draw_text(table, timeline, {.color = true}).find("\033[30;48;5;"), std::string::npos);
}

TEST(Draw, SurvivesAnEmptyTimeline) {
  const auto table = plan::build_schedule("none", {1, 1, 1});
  const auto timeline = replay::replay(table, {.forward = 0, .backward = 0});
  EXPECT_NE(draw_text(table, timeline, {}).find("rank 0"), std::string::npos);
  EXPECT_NE(draw_svg(table, timeline).find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::draw::timeline_test
