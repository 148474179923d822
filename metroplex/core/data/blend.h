// Blends of datasets in given proportions, and split arithmetic, exactly as in Megatron.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/index_cache.h"
#include "data/sample.h"

namespace metroplex::data {

constexpr std::array<const char*, 3> kSplitNames{"train", "valid", "test"};

// ["0.3", "a", "0.7", "b"] -> prefixes a, b with weights. Otherwise a list of prefixes without weights.
struct Blend {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;
};
// Returns nullopt for an empty list. Throws base::Error if only some of the words at weight positions are numbers.
std::optional<Blend> parse_blend(const std::vector<std::string>& words);

// Returns weights / sum, summed in numpy's order for identical bits.
std::vector<double> normalize(const std::vector<double>& weights);

// "969, 30, 1" -> shares of train, valid, test that sum to 1; missing ones are 0. Throws base::Error if all are 0.
std::array<double, 3> parse_split(const std::string& split);

// Begin and end of each split in [0, 1]; nullopt for an empty split. With `other`: the overlap of two splits.
using SplitBounds = std::array<std::optional<std::pair<double, double>>, 3>;
SplitBounds split_bounds(const std::array<double, 3>& shares);
SplitBounds split_bounds(const std::array<double, 3>& shares, const std::array<double, 3>& other);
// Returns [begin, end) of n documents, each rounded half to even.
std::pair<int64_t, int64_t> split_range(const std::pair<double, double>& bounds, int64_t n);

// Returns the samples to take from each dataset for each split: ceil(ceil(size * weight) * (1 + surplus)).
// [dataset][split]
std::vector<std::array<int64_t, 3>> sizes_per_dataset(const std::vector<double>& weights,
                                                      const std::array<int64_t, 3>& sizes, double surplus);

struct BlendIndex {
  std::vector<int16_t> dataset;  // dataset of each sample
  std::vector<int64_t> sample;   // index within that dataset
};
// Takes each sample from the dataset with the largest deficit against its share; ties go to the first.
BlendIndex build_blend_index(const std::vector<double>& weights, int64_t size);
// Uses every sample of every dataset, interleaved in proportion to their sizes.
BlendIndex build_exhaustive_blend_index(const std::vector<int64_t>& sizes);

class BlendedDataset final : public Dataset {
 public:
  // With `size`: that many samples by `weights`, which must be positive and are normalized here. Without: every
  // sample once, and weights are ignored. `name` is used in messages and in the cache. Throws base::Error if a
  // dataset is empty or has too few samples.
  BlendedDataset(std::vector<std::shared_ptr<const Dataset>> datasets, std::vector<double> weights,
                 std::optional<int64_t> size, const std::string& name, const IndexCache& cache);

  int64_t size() const override { return static_cast<int64_t>(dataset_.size()); }
  void get(int64_t index, Sample& out) const override;

  std::span<const int16_t> dataset_index() const { return dataset_; }
  std::span<const int64_t> sample_index() const { return sample_; }
  const std::vector<std::shared_ptr<const Dataset>>& datasets() const { return datasets_; }

 private:
  std::vector<std::shared_ptr<const Dataset>> datasets_;
  IndexCache::Entry entry_;
  std::span<const int16_t> dataset_;
  std::span<const int64_t> sample_;
};

}  // namespace metroplex::data
