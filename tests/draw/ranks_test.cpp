#include "draw/ranks.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace metroplex::draw::draw_test {
namespace {

config::Parallel two_nodes() {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 4;
  parallel.pipeline_model_parallel_size = 2;
  parallel.expert_model_parallel_size = 4;
  parallel.expert_tensor_parallel_size = 1;
  return parallel;
}

std::string golden(const std::string& file) {
  std::ifstream stream(METROPLEX_SOURCE_DIR "/tests/golden/topology/" + file, std::ios::binary);
  EXPECT_TRUE(stream.good()) << file;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

TEST(Draw, NodesOfAMixtureOfExpertsLookLikeTheGoldenPicture) {
  const topology::RankGrid grid(16, two_nodes());
  RankMapOptions options;
  options.gpus_per_node = 8;
  options.marked_rank = 13;
  options.colour = false;
  EXPECT_EQ(draw_terminal(grid, options) + "\n" + draw_rank(grid, 13, 8) + "\n" + draw_reach(grid, 8),
            golden("nodes.txt"));
  EXPECT_EQ(draw_svg(grid, options), golden("nodes.svg"));
}

TEST(Draw, StagesInColourLookLikeTheGoldenPicture) {
  const topology::RankGrid grid(16, two_nodes());
  RankMapOptions options;
  options.colour_by = {topology::Axis::dp, topology::Axis::cp};
  EXPECT_EQ(draw_terminal(grid, options), golden("stages_in_colour.txt"));
}

TEST(Draw, ALargeWorldLeavesOutTheMiddle) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 8;
  parallel.pipeline_model_parallel_size = 32;
  const topology::RankGrid grid(16384, parallel);
  RankMapOptions options;
  options.colour = false;
  options.max_rows = 4;
  const std::string picture = draw_terminal(grid, options) + "\n" + draw_groups(grid.groups({topology::Axis::dp}), 8);
  EXPECT_EQ(picture, golden("large.txt"));
}

TEST(Draw, NoEscapeIsWrittenWithoutColourAndEveryRankAppearsOnce) {
  const topology::RankGrid grid(32, two_nodes());
  RankMapOptions options;
  options.colour = false;
  const std::string picture = draw_terminal(grid, options);
  EXPECT_EQ(picture.find('\x1b'), std::string::npos);
  for (int rank = 0; rank < 32; ++rank) {
    EXPECT_NE(picture.find("| " + std::to_string(rank) + " #"), std::string::npos) << rank;
  }
  options.colour = true;
  EXPECT_NE(draw_terminal(grid, options).find('\x1b'), std::string::npos);
}

TEST(Draw, GroupsOfTheSameColourFamilyShareAColourInTheSvg) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = 2;
  const std::string svg = draw_svg(topology::RankGrid(4, parallel), {});
  const auto colour_before = [&](const std::string& title) {
    const size_t fill = svg.rfind("fill=\"", svg.find(">" + title + "<"));
    return svg.substr(fill + 6, 7);
  };
  EXPECT_EQ(colour_before("0 #0"), colour_before("1 #0"));
  EXPECT_NE(colour_before("0 #0"), colour_before("2 #1"));
}

TEST(Draw, JsonHoldsCoordinatesGroupsAndReach) {
  const topology::RankGrid grid(16, two_nodes());
  const auto json = nlohmann::json::parse(to_json(grid, 8));
  EXPECT_EQ(json.at("world_size"), 16);
  EXPECT_EQ(json.at("sizes").at("edp"), 2);
  EXPECT_EQ(json.at("ranks").at(13).at("pp"), 1);
  EXPECT_EQ(json.at("ranks").at(13).at("ep"), 1);
  EXPECT_EQ(json.at("ranks").at(13).at("node"), 1);
  EXPECT_EQ(json.at("groups").at("dp-cp").get<topology::RankGroups>(),
            grid.groups({topology::Axis::dp, topology::Axis::cp}));
  EXPECT_EQ(json.at("reach").at("pp").at("num_crossing"), 8);
  EXPECT_EQ(json.at("megatron_groups").at("EMBEDDING_GROUP").get<topology::RankGroups>(),
            grid.groups(topology::Axis::pp));
}

TEST(Draw, JsonReplacesBytesThatAreNotUtf8) {
  const JsonFilter filter{.rank = std::nullopt, .group = topology::NamedGroups{"tp\xff", {{0, 1}}}};
  const auto json = nlohmann::json::parse(to_json(topology::RankGrid(16, two_nodes()), 8, {}, filter));
  EXPECT_EQ(json.at("group").at("name"), "tp\uFFFD");
}

TEST(Draw, FitsIntoTheTerminal) {
  RankMapOptions options;
  options.colour = false;
  for (const int columns : {60, 80, 100}) {
    options.line_columns = columns;
    std::istringstream lines(draw_terminal(topology::RankGrid(16, two_nodes()), options));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
  }
}

TEST(Draw, AMarkOutsideTheWorldAndATinyPictureAreRefused) {
  const topology::RankGrid grid(4, {});
  RankMapOptions options;
  options.marked_rank = 4;
  EXPECT_THROW(draw_terminal(grid, options), base::Error);
  options.marked_rank = -1;
  options.max_columns = 2;
  EXPECT_THROW(draw_svg(grid, options), base::Error);
}

}  // namespace
}  // namespace metroplex::draw::draw_test
