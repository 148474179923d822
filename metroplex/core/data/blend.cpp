#include "data/blend.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <sstream>

#include "base/error.h"

namespace metroplex::data {

namespace {

std::optional<double> parse_number(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// numpy adds up to 128 numbers in eight running sums and longer arrays in halves.
double numpy_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) return std::accumulate(values.begin(), values.end(), 0.0);
  if (n > 128) {
    const size_t half = n / 2 - n / 2 % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  std::array<double, 8> r;
  std::copy_n(values.begin(), 8, r.begin());
  size_t i = 8;
  for (; i < n - n % 8; i += 8) {
    for (size_t k = 0; k < 8; ++k) r[k] += values[i + k];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

template <class IsCandidate>
size_t furthest_behind(const std::vector<double>& weights, const std::vector<int64_t>& counts, int64_t n,
                       IsCandidate is_candidate) {
  const double taken = std::max(static_cast<double>(n), 1.0);
  size_t best = 0;
  double most = -std::numeric_limits<double>::infinity();
  for (size_t d = 0; d < weights.size(); ++d) {
    const double behind = weights[d] * taken - static_cast<double>(counts[d]);
    if (is_candidate(d) && behind > most) {
      most = behind;
      best = d;
    }
  }
  return best;
}

BlendIndex empty_blend_index(size_t num_datasets, int64_t size) {
  MPX_CHECK(num_datasets < 32767, "data", "the blend has ", num_datasets, " datasets; the maximum is 32766");
  BlendIndex index;
  index.dataset.reserve(static_cast<size_t>(size));
  index.sample.reserve(static_cast<size_t>(size));
  return index;
}

}  // namespace

std::optional<Blend> parse_blend(const std::vector<std::string>& words) {
  if (words.empty()) return std::nullopt;
  if (words.size() % 2 == 1) return Blend{words, std::nullopt};
  Blend blend;
  std::vector<double> weights;
  size_t numbers = 0;
  for (size_t i = 0; i < words.size(); i += 2) {
    const auto weight = parse_number(words[i]);
    numbers += weight.has_value();
    weights.push_back(weight.value_or(0));
    blend.prefixes.push_back(words[i + 1]);
  }
  if (numbers == 0) return Blend{words, std::nullopt};
  MPX_CHECK(numbers == weights.size(), "data", "data path: ", numbers, " of ", weights.size(),
            " weights are numbers; list WEIGHT PREFIX pairs, or only prefixes");
  blend.weights = std::move(weights);
  return blend;
}

std::vector<double> normalize(const std::vector<double>& weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> out(weights);
  for (double& weight : out) weight /= sum;
  return out;
}

std::array<double, 3> parse_split(const std::string& split) {
  std::vector<double> shares;
  for (size_t at = 0; at < split.size();) {
    const auto is_part = [&](char c) { return c == '.' || std::isdigit(static_cast<unsigned char>(c)) != 0; };
    size_t end = at;
    while (end < split.size() && is_part(split[end])) ++end;
    if (end > at) {
      const auto share = parse_number(split.substr(at, end - at));
      MPX_CHECK(share.has_value(), "data", "data.split = '", split, "': '", split.substr(at, end - at),
                "' is not a number");
      shares.push_back(*share);
    } else {
      MPX_CHECK(split[at] == ',' || split[at] == ' ', "data", "data.split = '", split, "': '", split[at],
                "' is not valid here; list up to three shares, like 969, 30, 1");
      end = at + 1;
    }
    at = end;
  }
  MPX_CHECK(!shares.empty() && shares.size() <= 3, "data", "data.split = '", split, "' has ", shares.size(),
            " shares; list one to three: train, valid, test");
  shares.resize(3, 0.0);
  MPX_CHECK(shares[0] + shares[1] + shares[2] > 0, "data", "data.split = '", split,
            "': all shares are 0; at least one must be positive");
  const auto normal = normalize(shares);
  return {normal[0], normal[1], normal[2]};
}

SplitBounds split_bounds(const std::array<double, 3>& shares, const std::array<double, 3>& other) {
  SplitBounds bounds;
  double begin_a = 0, begin_b = 0;
  for (size_t i = 0; i < 3; ++i) {
    const double end_a = begin_a + shares[i], end_b = begin_b + other[i];
    const double begin = std::max(begin_a, begin_b), end = std::min(end_a, end_b);
    if (begin < end) bounds[i] = {begin, end};
    begin_a = end_a;
    begin_b = end_b;
  }
  return bounds;
}

SplitBounds split_bounds(const std::array<double, 3>& shares) { return split_bounds(shares, shares); }

std::pair<int64_t, int64_t> split_range(const std::pair<double, double>& bounds, int64_t n) {
  const auto at = [n](double share) { return static_cast<int64_t>(std::nearbyint(share * static_cast<double>(n))); };
  return {std::clamp<int64_t>(at(bounds.first), 0, n), std::clamp<int64_t>(at(bounds.second), 0, n)};
}

std::vector<std::array<int64_t, 3>> sizes_per_dataset(const std::vector<double>& weights,
                                                      const std::array<int64_t, 3>& sizes, double surplus) {
  std::vector<std::array<int64_t, 3>> out;
  for (const double weight : weights) {
    std::array<int64_t, 3> row{};
    for (size_t i = 0; i < 3; ++i)
      row[i] = static_cast<int64_t>(std::ceil(std::ceil(static_cast<double>(sizes[i]) * weight) * (1 + surplus)));
    out.push_back(row);
  }
  return out;
}

BlendIndex build_blend_index(const std::vector<double>& weights, int64_t size) {
  BlendIndex index = empty_blend_index(weights.size(), size);
  std::vector<int64_t> counts(weights.size(), 0);
  for (int64_t n = 0; n < size; ++n) {
    const size_t d = furthest_behind(weights, counts, n, [](size_t) { return true; });
    index.dataset.push_back(static_cast<int16_t>(d));
    index.sample.push_back(counts[d]++);
  }
  return index;
}

BlendIndex build_exhaustive_blend_index(const std::vector<int64_t>& sizes) {
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  BlendIndex index = empty_blend_index(sizes.size(), total);
  std::vector<double> weights;
  for (const int64_t size : sizes) weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  std::vector<int64_t> counts(sizes.size(), 0);
  for (int64_t n = 0; n < total; ++n) {
    const size_t d = furthest_behind(weights, counts, n, [&](size_t i) { return counts[i] < sizes[i]; });
    index.dataset.push_back(static_cast<int16_t>(d));
    index.sample.push_back(counts[d]++);
  }
  return index;
}

BlendedDataset::BlendedDataset(std::vector<std::shared_ptr<const Dataset>> datasets, std::vector<double> weights,
                               std::optional<int64_t> size, const std::string& name, const IndexCache& cache)
    : datasets_(std::move(datasets)) {
  MPX_ASSERT(datasets_.size() == weights.size(), datasets_.size(), " datasets and ", weights.size(), " weights");
  std::vector<int64_t> sizes;
  std::ostringstream description;
  description.precision(17);
  description << "blend, version 1\nname " << name << "\nsize " << (size ? *size : -1) << "\n";
  if (size) weights = normalize(weights);
  for (size_t d = 0; d < datasets_.size(); ++d) {
    sizes.push_back(datasets_[d] ? datasets_[d]->size() : 0);
    MPX_CHECK(sizes[d] > 0, "data", "split ", name, ": dataset ", d,
              " of the blend does not have a complete sample; omit it, or change data.split");
    MPX_CHECK(weights[d] > 0, "data", "split ", name, ": dataset ", d, " of the blend has weight ", weights[d],
              "; weights must be positive; omit the dataset");
    description << weights[d] << " of " << sizes[d] << "\n";
  }
  entry_ = cache.get("BlendedDataset", description.str(), [&] {
    BlendIndex index = size ? build_blend_index(weights, *size) : build_exhaustive_blend_index(sizes);
    IndexArrays arrays;
    arrays.add("dataset_index", std::move(index.dataset));
    arrays.add("dataset_sample_index", std::move(index.sample));
    return arrays;
  });
  dataset_ = entry_.array<int16_t>("dataset_index");
  sample_ = entry_.array<int64_t>("dataset_sample_index");
  for (size_t i = 0; i < dataset_.size(); ++i) {
    const auto d = static_cast<size_t>(dataset_[i]);
    MPX_CHECK(sample_[i] < sizes[d], "data", "split ", name, ": the blend needs sample ", sample_[i], " of dataset ",
              d, ", which has ", sizes[d], " samples; reduce its weight or the number of samples");
  }
}

void BlendedDataset::get(int64_t index, Sample& out) const {
  MPX_ASSERT(index >= -1 && index < size() && size() > 0, "sample ", index, " of ", size());
  const auto at = static_cast<size_t>(std::max<int64_t>(index, 0));
  datasets_[static_cast<size_t>(dataset_[at])]->get(index < 0 ? -1 : sample_[at], out);
  out.index = index;
}

}  // namespace metroplex::data
