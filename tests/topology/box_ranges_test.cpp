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
DimShard random_shard(Random& random, int dim, int64_t rows) {
  std::vector<RowRange> segments;
  for (int64_t at = 0; at < rows;) {
    const int64_t size = 1 + random.upto(std::min<int64_t>(2, rows - at - 1));
    if (random.upto(2) > 0) segments.push_back({0, at, size});
    at += size;
  }
  std::shuffle(segments.begin(), segments.end(), random.engine());
  DimShard dim_shard{dim, Axis::tp, {}, 0};
  int64_t local = random.upto(3) == 0 ? 1 : 0;
  for (RowRange segment : segments) {
    segment.local = local;
    local += segment.size + (random.upto(3) == 0 ? 1 : 0);
    dim_shard.ranges.push_back(segment);
  }
  dim_shard.rows = local;
  return dim_shard;
}

struct Case {
  Shape shape;
  Placement placement;
};

Case random_case(Random& random) {
  Case test_case;
  for (int64_t d = 1 + random.upto(3); d > 0; --d) test_case.shape.push_back(1 + random.upto(5));
  for (size_t d = 0; d < test_case.shape.size(); ++d) {
    if (random.upto(1) == 0) continue;
    const DimShard dim_shard = random_shard(random, static_cast<int>(d), test_case.shape[d]);
    if (dim_shard.local_rows() > 0) test_case.placement.cuts.push_back(dim_shard);
  }
  std::shuffle(test_case.placement.cuts.begin(), test_case.placement.cuts.end(), random.engine());
  return test_case;
}

// Local -> global for all elements except padding, with an index lookup dim by dim.
std::map<int64_t, int64_t> map_elements(const Case& test_case) {
  const Shape local_sizes = local_shape(test_case.shape, test_case.placement);
  std::map<int64_t, int64_t> mapping;
  for (int64_t local = 0; local < product(local_sizes); ++local) {
    Shape index = unravel(local, local_sizes);
    bool valid = true;
    for (const DimShard& dim_shard : test_case.placement.cuts) {
      int64_t& row = index[static_cast<size_t>(dim_shard.dim)];
      const auto found = std::find_if(dim_shard.ranges.begin(), dim_shard.ranges.end(), [&](const RowRange& range) {
        return range.local <= row && row < range.local + range.size;
      });
      valid = valid && found != dim_shard.ranges.end();
      if (valid) row += found->global - found->local;
    }
    if (valid) mapping[local] = ravel(index, test_case.shape);
  }
  return mapping;
}

std::string format_case(const Case& test_case) {
  std::ostringstream text;
  for (const int64_t size : test_case.shape) text << size << " ";
  for (const DimShard& dim_shard : test_case.placement.cuts) {
    text << "| dim " << dim_shard.dim << " of " << dim_shard.rows << ":";
    for (const RowRange& range : dim_shard.ranges)
      text << " " << range.local << "<-" << range.global << "+" << range.size;
  }
  return text.str();
}

TEST(BoxRanges, EveryElementOfTenThousandRandomPlacementsLandsOnceAtItsPlace) {
  Random random;
  for (int number = 0; number < 10'000; ++number) {
    const Case test_case = random_case(random);
    const std::map<int64_t, int64_t> right = map_elements(test_case);
    const int64_t numel = product(local_shape(test_case.shape, test_case.placement));
    const int64_t begin = random.upto(numel), end = begin + random.upto(numel - begin);
    std::map<int64_t, int64_t> mapping;
    int64_t last = begin;
    for (const BoxRange& box : box_ranges(test_case.shape, test_case.placement, begin, end)) {
      ASSERT_LT(box.begin, box.end) << format_case(test_case);
      ASSERT_GE(box.local, last) << format_case(test_case);
      for (int64_t e = box.begin; e < box.end; ++e) {
        Shape index = unravel(e, box.size);
        for (size_t d = 0; d < index.size(); ++d) index[d] += box.offset[d];
        ASSERT_TRUE(mapping.emplace(box.local + e - box.begin, ravel(index, test_case.shape)).second)
            << format_case(test_case);
      }
      last = box.local + box.end - box.begin;
    }
    const std::map<int64_t, int64_t> expected(right.lower_bound(begin), right.lower_bound(end));
    ASSERT_EQ(mapping, expected) << format_case(test_case) << " [" << begin << ", " << end << ")";
  }
}

TEST(BoxRanges, RunsOfRandomPlacementsAreAllElementsOnceAndPaddingIsTheRest) {
  Random random;
  for (int number = 0; number < 10'000; ++number) {
    const Case test_case = random_case(random);
    const std::map<int64_t, int64_t> right = map_elements(test_case);
    std::map<int64_t, int64_t> mapping;
    for_each_range(test_case.shape, test_case.placement, [&](int64_t local, int64_t global, int64_t count) {
      for (int64_t i = 0; i < count; ++i)
        ASSERT_TRUE(mapping.emplace(local + i, global + i).second) << format_case(test_case);
    });
    ASSERT_EQ(mapping, right) << format_case(test_case);
    const int64_t numel = product(local_shape(test_case.shape, test_case.placement));
    ASSERT_EQ(padding_numel(test_case.shape, test_case.placement), numel - static_cast<int64_t>(right.size()))
        << format_case(test_case);
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
