#include "checkpoint/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/support.h"
#include "files/memory_file_system.h"

namespace metroplex::checkpoint::compare_test {
namespace {

TEST(Compare, TheSameStateInTwoLayoutsIsEqual) {
  files::MemoryFileSystem a, b;
  ASSERT_TRUE(save_model(a, {.ranks = 1, .layout = 0}).ok);
  ASSERT_TRUE(save_model(b, {.ranks = 4, .layout = 7}).ok);
  Reader first(a, "/ckpt/iter_0000010"), second(b, "/ckpt/iter_0000010");
  const auto rows = compare(first, second);
  EXPECT_EQ(rows.size(), small_model().size());
  for (const TensorDifference& row : rows) EXPECT_EQ(row.different_elements, 0) << row.name;
}

SaveResult save_one(files::FileSystem& disk, const std::string& name, std::vector<float> data) {
  Alone alone;
  const auto size = static_cast<int64_t>(data.size());
  return save(disk, "/ckpt", {.iteration = 1},
              {{name, "weight", {size}, {0}, {size}, files::Dtype::kF32, data.data()}}, alone);
}

TensorDifference only_row(const std::vector<float>& x, const std::vector<float>& y) {
  files::MemoryFileSystem a, b;
  EXPECT_TRUE(save_one(a, "w", x).ok && save_one(b, "w", y).ok);
  Reader first(a, "/ckpt/iter_0000001"), second(b, "/ckpt/iter_0000001");
  return compare(first, second).at(0);
}

TEST(Compare, FindsTheLargestDifferenceAndCountsThem) {
  const TensorDifference row = only_row({1, 2, 3, -0.0f, NAN}, {1, 2.5f, 1, 0.0f, NAN});
  EXPECT_EQ(row.elements, 5);
  EXPECT_EQ(row.different_elements, 2);
  EXPECT_EQ(row.max_absolute, 2.0);
  EXPECT_EQ(row.norm, std::sqrt(0.25 + 4.0));
  EXPECT_EQ(row.first->dtype, files::Dtype::kF32);
  EXPECT_EQ(row.second->shape, Dims{5});
  EXPECT_EQ(only_row({1}, {NAN}).max_absolute, HUGE_VAL);
  EXPECT_EQ(only_row({1}, {NAN}).norm, HUGE_VAL);
  EXPECT_EQ(only_row({3, 4}, {3, 4}).norm, 0.0);
}

TEST(Compare, SaysWhatIsOnOneSideOnlyOrOfAnotherShape) {
  EXPECT_EQ(only_row({1, 2}, {1, 2, 3}).problem, "shape [2] and [3]");
  files::MemoryFileSystem a, b;
  ASSERT_TRUE(save_one(a, "x", {1}).ok && save_one(b, "y", {1}).ok);
  Reader first(a, "/ckpt/iter_0000001"), second(b, "/ckpt/iter_0000001");
  const auto rows = compare(first, second);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].problem, "only in the first");
  EXPECT_TRUE(rows[0].first && !rows[0].second);
  EXPECT_EQ(rows[1].problem, "only in the second");
}

}  // namespace
}  // namespace metroplex::checkpoint::compare_test
