#include "moe/forced.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace metroplex::moe {
namespace {

bool fit(const std::vector<int64_t>& loads, int64_t tokens, int64_t k) {
  return std::accumulate(loads.begin(), loads.end(), int64_t{0}) == tokens * k &&
         *std::max_element(loads.begin(), loads.end()) <= tokens;
}

// Returns shares proportional to `loads`, at most `most`, with the given sum. Shares above `most` are clamped, and
// the excess goes to the others.
std::vector<double> shares(const std::vector<double>& loads, double sum, double most) {
  std::vector<double> out(loads.size(), 0);
  std::vector<bool> full(loads.size(), false);
  for (bool again = true; again;) {
    again = false;
    double left = sum, weight = 0, count = 0;
    for (size_t e = 0; e < loads.size(); ++e) {
      left -= full[e] ? most : 0;
      weight += full[e] ? 0 : loads[e];
      count += full[e] ? 0 : 1;
    }
    for (size_t e = 0; e < loads.size(); ++e) {
      if (full[e]) continue;
      out[e] = weight > 0 ? left * (loads[e] / weight) : left / count;
      if (out[e] <= most) continue;
      out[e] = most;
      full[e] = again = true;
    }
  }
  return out;
}

}  // namespace

std::vector<int64_t> dealt_counts(const std::vector<int64_t>& loads, int64_t tokens, int64_t k) {
  MPX_ASSERT(k <= static_cast<int64_t>(loads.size()), "a token has more experts than exist");
  if (fit(loads, tokens, k)) return loads;
  const std::vector<double> wanted =
      shares({loads.begin(), loads.end()}, static_cast<double>(tokens * k), static_cast<double>(tokens));
  std::vector<int64_t> counts;
  for (const double share : wanted) counts.push_back(static_cast<int64_t>(std::floor(share)));
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto remainder = [&](size_t e) { return wanted[e] - static_cast<double>(counts[e]); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainder(a) > remainder(b); });
  int64_t left = tokens * k - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  while (left > 0) {
    for (const size_t e : order) {
      if (left == 0 || counts[e] >= tokens) continue;
      ++counts[e];
      --left;
    }
  }
  return counts;
}

at::Tensor deal_out(const at::Tensor& counts, int64_t tokens, int64_t k) {
  const at::NoGradGuard no_grad;
  // The cumulative sum gives, for each position, the number of experts that end at or before it.
  const at::Tensor ends = counts.cumsum(0);
  const at::Tensor experts =
      at::zeros({tokens * k + 1}, counts.options()).scatter_add_(0, ends, at::ones_like(ends)).cumsum(0);
  return experts.narrow(0, 0, tokens * k).view({k, tokens}).t().contiguous();
}

}  // namespace metroplex::moe
