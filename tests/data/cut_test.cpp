#include "support/cut.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/error.h"

namespace metroplex::data::cut_test {
namespace {

TEST(Cut, GivesEveryPositionToOneRankAndEachTheSameWork) {
  std::vector<int64_t> all;
  int64_t least = 1 << 30, most = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const auto positions = zigzag_positions(32, 4, rank);
    int64_t work = 0;  // pairs of causal attention
    for (const int64_t p : positions) work += p + 1;
    least = std::min(least, work);
    most = std::max(most, work);
    all.insert(all.end(), positions.begin(), positions.end());
  }
  std::sort(all.begin(), all.end());
  for (int64_t i = 0; i < 32; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
  EXPECT_EQ(least, most);
}

TEST(Cut, RefusesALengthThatDoesNotDivide) { EXPECT_THROW(zigzag_positions(10, 2, 0), base::Error); }

TEST(Cut, FindsTheBordersOfDocuments) {
  EXPECT_EQ(document_borders(std::vector<int32_t>{0, 0, 1, 2, 2}), (std::vector<int32_t>{0, 2, 3, 5}));
  EXPECT_EQ(document_borders(std::vector<int32_t>{0}), (std::vector<int32_t>{0, 1}));
}

TEST(Cut, MergesBordersWithoutRepeating) {
  EXPECT_EQ(merge_borders({{0, 3, 8, 8}, {0, 8}}, 8), (std::vector<int32_t>{0, 3, 8, 16}));
}

}  // namespace
}  // namespace metroplex::data::cut_test
