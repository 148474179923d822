#include "data/blend.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/scratch.h"

namespace metroplex::data::blend_test {
namespace {

class Numbered final : public Dataset {
 public:
  Numbered(int64_t name, int64_t size) : name_(name), size_(size) {}
  int64_t size() const override { return size_; }
  void get(int64_t index, Sample& out) const override { out.tokens = {name_, index}; }

 private:
  int64_t name_, size_;
};

BlendedDataset make_blend(const std::vector<int64_t>& sizes, const std::vector<double>& weights,
                          std::optional<int64_t> size) {
  std::vector<std::shared_ptr<const Dataset>> datasets;
  for (size_t i = 0; i < sizes.size(); ++i)
    datasets.push_back(std::make_shared<Numbered>(static_cast<int64_t>(i), sizes[i]));
  files::PosixFileSystem disk;
  return {datasets, weights, size, "train", IndexCache(disk, "")};
}

TEST(Blend, TakesSamplesInProportion) {
  const auto blend = make_blend({100, 100}, {1, 3}, 80);
  ASSERT_EQ(blend.size(), 80);
  std::vector<int64_t> next(2, 0);
  Sample sample;
  for (int64_t i = 0; i < 80; ++i) {
    blend.get(i, sample);
    EXPECT_EQ(sample.tokens[1], next[static_cast<size_t>(sample.tokens[0])]++) << "each dataset in its own order";
    EXPECT_EQ(sample.index, i);
    EXPECT_NEAR(static_cast<double>(next[0]), 0.25 * static_cast<double>(i + 1), 1.0);
  }
}

TEST(Blend, ReadsEverySampleOnceWithoutASize) {
  const auto blend = make_blend({3, 1, 6}, {3, 1, 6}, std::nullopt);
  std::vector<int> counts(3, 0);
  for (const int16_t d : blend.dataset_index()) ++counts[static_cast<size_t>(d)];
  EXPECT_EQ(counts, (std::vector<int>{3, 1, 6}));
}

TEST(Blend, PassesOverEmptyDatasetsInAnExhaustiveIndex) {
  const BlendIndex index = build_exhaustive_blend_index({0, 4, 0, 2});
  EXPECT_EQ(index.dataset.size(), 6u);
  EXPECT_TRUE(std::all_of(index.dataset.begin(), index.dataset.end(), [](int16_t d) { return d == 1 || d == 3; }));
}

TEST(Blend, RefusesEmptyDatasetsAndWeightsThatAreNotPositive) {
  EXPECT_THROW(make_blend({5, 0}, {1, 1}, 4), base::Error);
  EXPECT_THROW(make_blend({5, 5}, {1, 0}, 4), base::Error);
  EXPECT_THROW(make_blend({5, 5}, {2, -1}, 4), base::Error);
}

TEST(Blend, RefusesToAskADatasetForMoreThanItHas) { EXPECT_THROW(make_blend({5, 100}, {1, 1}, 40), base::Error); }

// numpy does not sum eight or more numbers from left to right; the last bits of the weights show it.
TEST(Blend, NormalizesToTheBitsOfNumpy) {
  const std::vector<double> weights{0.78, 0.98, 0.99, 0.01, 0.9, 0.58, 0.35, 0.93, 0.3};
  EXPECT_EQ(normalize(weights)[0], 0.13402061855670105);
}

TEST(Blend, SumsLongListsOfWeightsInHalves) {
  const auto weights = normalize(std::vector<double>(1000, 0.1));
  EXPECT_EQ(weights.size(), 1000u);
  EXPECT_NEAR(weights[999], 0.001, 1e-17);
  std::vector<double> harmonic;  // numpy splits 131 numbers after 64, not 65
  for (int i = 1; i <= 131; ++i) harmonic.push_back(1.0 / i);
  EXPECT_EQ(normalize(harmonic)[0], 0.1832769018053539);
}

TEST(Blend, IsCachedForItsSizeAndThoseOfItsDatasets) {
  const Scratch scratch;
  files::PosixFileSystem disk;
  const IndexCache cache(disk, scratch / "cache");
  const auto size_of = [&](int64_t samples, std::optional<int64_t> size) {
    const std::vector<std::shared_ptr<const Dataset>> datasets{std::make_shared<Numbered>(0, samples),
                                                               std::make_shared<Numbered>(1, 50)};
    return BlendedDataset(datasets, {1, 1}, size, "train", cache).size();
  };
  EXPECT_EQ(size_of(50, 20), 20);
  EXPECT_EQ(size_of(50, 30), 30);
  EXPECT_EQ(size_of(50, std::nullopt), 100);
  EXPECT_EQ(size_of(40, std::nullopt), 90);
}

TEST(Split, RoundsHalfToEven) {
  EXPECT_EQ(split_range({0.5, 1.0}, 5), (std::pair<int64_t, int64_t>{2, 5}));
  EXPECT_EQ(split_range({0.5, 1.0}, 7), (std::pair<int64_t, int64_t>{4, 7}));
}

TEST(Split, RefusesWhatIsNoList) {
  for (const char* split : {"", "0,0,0", "a,b", "1,2,3,4", "1.2.3", "-1,2"})
    EXPECT_THROW(parse_split(split), base::Error) << split;
}

TEST(ParseBlend, RefusesHalfOfTheWeights) {
  EXPECT_THROW(parse_blend({"0.5", "a", "b", "c"}), base::Error);
  EXPECT_FALSE(parse_blend({"a", "b"})->weights.has_value());
}

}  // namespace
}  // namespace metroplex::data::blend_test
