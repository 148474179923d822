#include "page/curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace metroplex::page {

Series shorten(const Series& series, size_t most) {
  const size_t size = series.values.size();
  if (size <= most) return series;
  const size_t buckets = (most - 2) / 3;
  Series out;
  const auto add = [&](size_t i) {
    if (!out.empty() && out.iterations.back() >= series.iterations[i]) return;
    out.iterations.push_back(series.iterations[i]);
    out.values.push_back(series.values[i]);
  };
  add(0);
  for (size_t bucket = 0; bucket < buckets; ++bucket) {
    const size_t begin = bucket * size / buckets, end = (bucket + 1) * size / buckets;
    size_t low = end, high = end, invalid = end;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(series.values[i])) {
        invalid = i;
        continue;
      }
      if (low == end || series.values[i] < series.values[low]) low = i;
      if (high == end || series.values[i] > series.values[high]) high = i;
    }
    std::array<size_t, 3> chosen{low, high, invalid};
    std::sort(chosen.begin(), chosen.end());
    for (const size_t i : chosen) {
      if (i < end) add(i);
    }
  }
  add(size - 1);
  return out;
}

Series smooth(const Series& series, int64_t steps) {
  const double alpha = 2.0 / (static_cast<double>(steps) + 1);
  double sum = 0, weight = 0;
  Series out = series;
  for (double& value : out.values) {
    if (!std::isfinite(value)) continue;
    sum = (1 - alpha) * sum + alpha * value;
    weight = (1 - alpha) * weight + alpha;
    value = sum / weight;
  }
  return out;
}

int64_t smoothing_steps(size_t size) { return std::clamp<int64_t>(static_cast<int64_t>(size) / 50, 1, 1000); }

}  // namespace metroplex::page
