#include "checkpoint/pieces.h"

#include <gtest/gtest.h>

#include <numeric>

#include "checkpoint/support.h"

namespace metroplex::checkpoint::pieces_test {
namespace {

Dims random_shape(std::mt19937_64& random) {
  Dims shape(random() % 5);
  for (int64_t& size : shape) size = static_cast<int64_t>(1 + random() % 6);
  return shape;
}

TEST(Pieces, AnyCutTurnsIntoAnyOtherCut) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 400; ++trial) {
    const Dims shape = random_shape(random);
    std::vector<int32_t> whole(static_cast<size_t>(files::element_count(shape)));
    std::iota(whole.begin(), whole.end(), 1);
    const auto cut_out = [&](const Piece& piece) {
      std::vector<int32_t> data(static_cast<size_t>(piece.count()));
      EXPECT_EQ(copy_overlap(whole_piece(shape), whole.data(), piece, data.data(), 4), piece.count());
      return data;
    };
    const auto sources = random_cut(shape, random), targets = random_cut(shape, random);
    EXPECT_EQ(cover_problem(shape, sources), "") << describe_shape(shape);
    for (const Piece& target : targets) {
      std::vector<int32_t> data(static_cast<size_t>(target.count()), -1);
      int64_t copied = 0;
      for (const Piece& source : sources)
        copied += copy_overlap(source, cut_out(source).data(), target, data.data(), 4);
      EXPECT_EQ(copied, target.count());
      EXPECT_EQ(data, cut_out(target)) << describe_shape(shape) << " " << describe(target);
    }
  }
}

// A slow implementation of a range inside a box, element by element.
TEST(Pieces, ARangeOfABoxIsTheElementsInRowMajorOrder) {
  Piece piece = box_piece({2, 1, 0}, {3, 2, 4});
  piece.begin = 3;
  piece.end = 21;
  std::vector<int> seen(6 * 4 * 4, 0);
  for (const Piece& box : split_into_boxes(piece)) {
    for (int64_t i = 0; i < box.size[0]; ++i) {
      for (int64_t j = 0; j < box.size[1]; ++j) {
        for (int64_t k = 0; k < box.size[2]; ++k)
          ++seen[static_cast<size_t>(((box.offset[0] + i) * 4 + box.offset[1] + j) * 4 + box.offset[2] + k)];
      }
    }
  }
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 4; ++j) {
      for (int k = 0; k < 4; ++k) {
        const bool inside = i >= 2 && i < 5 && j >= 1 && j < 3;
        const int flat = ((i - 2) * 2 + (j - 1)) * 4 + k;
        EXPECT_EQ(seen[static_cast<size_t>((i * 4 + j) * 4 + k)], inside && flat >= 3 && flat < 21 ? 1 : 0);
      }
    }
  }
  EXPECT_LE(split_into_boxes(piece).size(), 5u);
}

TEST(Pieces, AMissingPieceAndADoubleOneAreFound) {
  std::mt19937_64 random(11);
  int tried = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const Dims shape = random_shape(random);
    const auto pieces = random_cut(shape, random);
    auto fewer = pieces;
    fewer.erase(fewer.begin() + static_cast<int64_t>(random() % fewer.size()));
    EXPECT_NE(cover_problem(shape, fewer).find("in no piece"), std::string::npos);
    auto more = pieces;
    more.push_back(more[random() % more.size()]);
    EXPECT_NE(cover_problem(shape, more).find("overlap"), std::string::npos);
    if (pieces.size() > 1) {  // the right number of elements, yet wrong
      auto moved = fewer;
      moved.push_back(fewer[0]);
      EXPECT_NE(cover_problem(shape, moved), "");
      ++tried;
    }
  }
  EXPECT_GT(tried, 100);
}

TEST(Pieces, CoverOfManyShardsIsCheckedQuickly) {
  std::vector<Piece> pieces;
  for (int64_t row = 0; row < 64; ++row) {
    for (int64_t column = 0; column < 64; ++column) pieces.push_back(box_piece({row * 8, column * 8}, {8, 8}));
  }
  EXPECT_EQ(cover_problem({512, 512}, pieces), "");
}

}  // namespace
}  // namespace metroplex::checkpoint::pieces_test
