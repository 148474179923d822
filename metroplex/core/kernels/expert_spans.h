// For CPU kernels over the rows of experts: parallel loops over ranges of rows of one expert.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/expert_rows.h"

namespace metroplex::kernels {

// Returns the first row of each expert, then the total number of rows.
inline std::vector<int64_t> first_rows(const int64_t* counts, const ExpertShape& shape) {
  std::vector<int64_t> first(static_cast<size_t>(shape.experts) + 1, 0);
  for (int64_t e = 0; e < shape.experts; ++e) {
    const int64_t begin = first[static_cast<size_t>(e)];
    first[static_cast<size_t>(e) + 1] = begin + std::clamp<int64_t>(counts[e], 0, shape.rows - begin);
  }
  return first;
}

// Calls span(expert, begin, end) for ranges that cover every row once, concurrently.
template <class Span>
void for_spans(const int64_t* counts, const ExpertShape& shape, const Span& span) {
  const std::vector<int64_t> first = first_rows(counts, shape);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, shape.width));
  at::parallel_for(0, first.back(), grain, [&](int64_t begin, int64_t end) {
    auto next = std::upper_bound(first.begin(), first.end(), begin);
    while (begin < end) {
      const int64_t stop = std::min(end, *next);
      if (stop > begin) span(next - first.begin() - 1, begin, stop);
      begin = std::max(begin, stop);
      ++next;
    }
  });
}

}  // namespace metroplex::kernels
