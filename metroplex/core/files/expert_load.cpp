#include "files/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace metroplex::files {

LoadQuantiles quantiles(std::vector<int64_t> tokens) {
  MPX_ASSERT(!tokens.empty(), "no experts");
  std::sort(tokens.begin(), tokens.end());
  const auto at = [&](int64_t percent) {
    const auto place = (percent * static_cast<int64_t>(tokens.size()) + 99) / 100;
    return tokens[static_cast<size_t>(std::max<int64_t>(1, place) - 1)];
  };
  return {tokens.front(), at(10), at(50), at(90), tokens.back()};
}

double imbalance(const std::vector<int64_t>& tokens) {
  const int64_t sum = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  if (sum == 0) return 1;
  const auto most = static_cast<double>(*std::max_element(tokens.begin(), tokens.end()));
  return most * static_cast<double>(tokens.size()) / static_cast<double>(sum);
}

Imbalance imbalance_of_steps(const std::vector<std::vector<int64_t>>& steps) {
  MPX_ASSERT(!steps.empty(), "no steps");
  std::vector<int64_t> sums(steps[0].size());
  Imbalance out{1, 0, 1};
  for (const std::vector<int64_t>& step : steps) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += step[i];
    const double here = imbalance(step);
    out.mean += here / static_cast<double>(steps.size());
    out.worst = std::max(out.worst, here);
  }
  out.together = imbalance(sums);
  return out;
}

std::vector<int64_t> tokens_of_ranks(const std::vector<int64_t>& tokens, int64_t ep) {
  const auto each = static_cast<int64_t>(tokens.size()) / ep;
  std::vector<int64_t> ranks;
  for (auto at = tokens.begin(); at != tokens.end(); at += each)
    ranks.push_back(std::accumulate(at, at + each, int64_t{0}));
  return ranks;
}

}  // namespace metroplex::files
