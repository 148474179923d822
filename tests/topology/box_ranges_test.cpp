// Boxes and ranges of 10,000 random placements, element by element.
#include "topology/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

namespace metroplex::topology::box_ranges_test {
namespace {

using Shape = std::vector<int64_t>;

int64_t product(const Shape& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

Shape unravel(int64_t flat, const Shape& shape) {
  Shape index(shape.size());
  for (size_t d = shape.size(); d-- > 0; flat /= shape[d]) index[d] = flat % shape[d];
  return index;
}

int64_t ravel(const Shape& index, const Shape& shape) {
  int64_t flat = 0;
  for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return flat;
}

class Random {
 public:
  int64_t upto(int64_t last) { return std::uniform_int_distribution<int64_t>(0, last)(engine_); }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_{20221122};
};

// Some of the segments of `rows`, in any order, with padding before, between and after them.
Cut random_cut(Random& random, int dim, int64_t rows) {
  std::vector<RowRange> segments;
  for (int64_t at = 0; at < rows;) {
    const int64_t size = 1 + random.upto(std::min<int64_t>(2, rows - at - 1));
    if (random.upto(2) > 0) segments.push_back({0, at, size});
    at += size;
  }
  std::shuffle(segments.begin(), segments.end(), random.engine());
  Cut cut{dim, Axis::tp, {}, 0};
  int64_t local = random.upto(3) == 0 ? 1 : 0;
  for (RowRange segment : segments) {
    segment.local = local;
    local += segment.size + (random.upto(3) == 0 ? 1 : 0);
    cut.ranges.push_back(segment);
  }
  cut.rows = local;
  return cut;
}

struct Case {
  Shape shape;
  Placement placement;
};

Case random_case(Random& random) {
  Case c;
  for (int64_t d = 1 + random.upto(3); d > 0; --d) c.shape.push_back(1 + random.upto(5));
  for (size_t d = 0; d < c.shape.size(); ++d) {
    if (random.upto(1) == 0) continue;
    const Cut cut = random_cut(random, static_cast<int>(d), c.shape[d]);
    if (cut.local_rows() > 0) c.placement.cuts.push_back(cut);
  }
  std::shuffle(c.placement.cuts.begin(), c.placement.cuts.end(), random.engine());
  return c;
}

// Local -> global for all elements except padding, with an index lookup dim by dim.
std::map<int64_t, int64_t> right_places(const Case& c) {
  const Shape local_sizes = local_shape(c.shape, c.placement);
  std::map<int64_t, int64_t> places;
  for (int64_t local = 0; local < product(local_sizes); ++local) {
    Shape index = unravel(local, local_sizes);
    bool valid = true;
    for (const Cut& cut : c.placement.cuts) {
      int64_t& row = index[static_cast<size_t>(cut.dim)];
      const auto found = std::find_if(cut.ranges.begin(), cut.ranges.end(), [&](const RowRange& range) {
        return range.local <= row && row < range.local + range.size;
      });
      valid = valid && found != cut.ranges.end();
      if (valid) row += found->global - found->local;
    }
    if (valid) places[local] = ravel(index, c.shape);
  }
  return places;
}

std::string text_of(const Case& c) {
  std::ostringstream text;
  for (const int64_t size : c.shape) text << size << " ";
  for (const Cut& cut : c.placement.cuts) {
    text << "| dim " << cut.dim << " of " << cut.rows << ":";
    for (const RowRange& r : cut.ranges) text << " " << r.local << "<-" << r.global << "+" << r.size;
  }
  return text.str();
}

TEST(BoxRanges, EveryElementOfTenThousandRandomPlacementsLandsOnceAtItsPlace) {
  Random random;
  for (int number = 0; number < 10'000; ++number) {
    const Case c = random_case(random);
    const std::map<int64_t, int64_t> right = right_places(c);
    const int64_t numel = product(local_shape(c.shape, c.placement));
    const int64_t begin = random.upto(numel), end = begin + random.upto(numel - begin);
    std::map<int64_t, int64_t> places;
    int64_t last = begin;
    for (const BoxRange& box : box_ranges(c.shape, c.placement, begin, end)) {
      ASSERT_LT(box.begin, box.end) << text_of(c);
      ASSERT_GE(box.local, last) << text_of(c);
      for (int64_t e = box.begin; e < box.end; ++e) {
        Shape index = unravel(e, box.size);
        for (size_t d = 0; d < index.size(); ++d) index[d] += box.offset[d];
        ASSERT_TRUE(places.emplace(box.local + e - box.begin, ravel(index, c.shape)).second) << text_of(c);
      }
      last = box.local + box.end - box.begin;
    }
    const std::map<int64_t, int64_t> expected(right.lower_bound(begin), right.lower_bound(end));
    ASSERT_EQ(places, expected) << text_of(c) << " [" << begin << ", " << end << ")";
  }
}

TEST(BoxRanges, RunsOfRandomPlacementsAreAllElementsOnceAndPaddingIsTheRest) {
  Random random;
  for (int number = 0; number < 10'000; ++number) {
    const Case c = random_case(random);
    const std::map<int64_t, int64_t> right = right_places(c);
    std::map<int64_t, int64_t> places;
    for_each_run(c.shape, c.placement, [&](int64_t local, int64_t global, int64_t count) {
      for (int64_t i = 0; i < count; ++i) ASSERT_TRUE(places.emplace(local + i, global + i).second) << text_of(c);
    });
    ASSERT_EQ(places, right) << text_of(c);
    const int64_t numel = product(local_shape(c.shape, c.placement));
    ASSERT_EQ(padding_numel(c.shape, c.placement), numel - static_cast<int64_t>(right.size())) << text_of(c);
  }
}

std::string boxes(const Shape& shape, const Placement& placement, int64_t begin, int64_t end) {
  std::ostringstream text;
  const auto list = [&](const Shape& values) {
    for (size_t i = 0; i < values.size(); ++i) text << (i == 0 ? "" : ",") << values[i];
  };
  for (const BoxRange& box : box_ranges(shape, placement, begin, end)) {
    text << "(";
    list(box.offset);
    text << ")+(";
    list(box.size);
    text << ")[" << box.begin << "," << box.end << ")@" << box.local << " ";
  }
  return text.str();
}

// The form on disk in checkpoints: as few boxes as the local tensor allows.
TEST(BoxRanges, BoxesOfEveryKindOfPlacementAreThoseOfTheList) {
  EXPECT_EQ(boxes({4, 3}, {}, 2, 9), "(0,0)+(4,3)[2,9)@2 ");
  EXPECT_EQ(boxes({8, 3}, {.cuts = {{0, Axis::tp, {{0, 4, 4}}}}}, 0, 12), "(4,0)+(4,3)[0,12)@0 ");
  EXPECT_EQ(boxes({3, 8}, {.cuts = {{1, Axis::tp, {{0, 4, 4}}}}}, 1, 12), "(0,4)+(3,4)[1,12)@1 ");
  EXPECT_EQ(boxes({7, 3}, {.cuts = {{0, Axis::tp, {{0, 4, 3}}, 4}}}, 0, 12), "(4,0)+(3,3)[0,9)@0 ")
      << "padded vocabulary";
  EXPECT_EQ(boxes({7, 3}, {.cuts = {{0, Axis::tp, {}, 4}}}, 0, 12), "") << "nothing but padding";
  EXPECT_EQ(boxes({8, 3}, {.cuts = {{0, Axis::tp, {{0, 2, 2}, {2, 6, 2}}}}}, 4, 11),
            "(2,0)+(2,3)[4,6)@4 (6,0)+(2,3)[0,5)@6 ")
      << "gate and up";
  const Placement experts{.grid = Grid::expert,
                          .cuts = {{0, Axis::ep, {{0, 2, 2}}}, {1, Axis::etp, {{0, 1, 1}, {1, 3, 1}}}}};
  EXPECT_EQ(boxes({4, 4, 3}, experts, 0, 12),
            "(2,1,0)+(1,1,3)[0,3)@0 (2,3,0)+(1,1,3)[0,3)@3 (3,1,0)+(1,1,3)[0,3)@6 (3,3,0)+(1,1,3)[0,3)@9 ")
      << "gate and up of two experts";
  const Placement second{.grid = Grid::expert, .cuts = {{0, Axis::ep, {{0, 2, 2}}}, {2, Axis::etp, {{0, 3, 3}}}}};
  EXPECT_EQ(boxes({4, 4, 6}, second, 0, 24), "(2,0,3)+(2,4,3)[0,24)@0 ") << "an even cut of two dims is one box";
}

}  // namespace
}  // namespace metroplex::topology::box_ranges_test
