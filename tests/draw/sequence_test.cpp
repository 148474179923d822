#include <gtest/gtest.h>

#include "draw/sequence.h"

namespace metroplex::draw::sequence_draw_test {
namespace {

SequencePicture picture(const std::vector<int64_t>& lengths, const plan::SequenceCutRequest& request) {
  return {{lengths}, "zigzag", plan::cut_sequence({lengths}, request)};
}

TEST(SequenceDraw, TextHasRanksWhatTheyGetAndHowEvenTheyAre) {
  EXPECT_EQ(draw_text(picture({8}, {config::SequenceCutKind::zigzag, 2}), 8),
            "zigzag: 8 tokens, cp 2\n"
            "       |       \n"
            "rank 0 ##    ## 4 tokens, area 50.00 %, gets 4 keys\n"
            "rank 1   ####   4 tokens, area 50.00 %, gets 2 keys\n"
            "most over mean: area 1.000, tokens 1.000; keys from other ranks: 6, 75.0 % of the 8 of a gather\n"
            "to \\ from  0  1\n"
            "        0  .  4\n"
            "        1  2  .\n");
}

TEST(SequenceDraw, ABarMarksWhatIsHeldInPart) {
  const std::string text = draw_text(picture({6, 6}, {config::SequenceCutKind::contiguous, 2}), 4);
  EXPECT_NE(text.find("       | | \nrank 0 ##   6 tokens"), std::string::npos) << text;
  EXPECT_EQ(text.find("to \\ from"), std::string::npos) << "nobody sends";
  const std::string part = draw_text(picture({16}, {config::SequenceCutKind::zigzag, 4}), 5);
  EXPECT_NE(part.find("rank 0 +   +"), std::string::npos) << part;
}

TEST(SequenceDraw, SvgHasARowForEveryRankAndABoxForEveryRun) {
  const std::string svg = draw_svg(picture({8}, {config::SequenceCutKind::zigzag, 2}));
  const auto count = [&](const std::string& what) {
    int found = 0;
    for (size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("#e3c27a\"/>"), 2);                     // one range each
  EXPECT_EQ(count("height=\"22\" fill=\"#4d8fd1\""), 3);  // 0 has two ranges, 1 has one
  EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
}

}  // namespace
}  // namespace metroplex::draw::sequence_draw_test
