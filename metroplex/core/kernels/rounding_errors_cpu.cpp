#include "kernels/rounding_errors.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/expert_spans.h"

#pragma GCC optimize("O3,no-math-errno,no-trapping-math,fp-contract=off")

namespace metroplex::kernels {
namespace {

constexpr int64_t kLanes = 32;  // of a warp

// Adds the figures of kFigureThreads threads as block_reduce does: in pairs within a warp, then warp by warp.
RoundingFigures total_of_threads(std::vector<RoundingFigures>& threads) {
  RoundingFigures total;
  for (int64_t warp = 0; warp < kFigureThreads; warp += kLanes) {
    RoundingFigures* const lanes = threads.data() + warp;
    for (int64_t offset = kLanes / 2; offset > 0; offset /= 2)
      for (int64_t lane = 0; lane < offset; ++lane) add_figures(lanes[lane], lanes[lane + offset]);
    add_figures(total, lanes[0]);
  }
  return total;
}

template <class T>
RoundingFigures figures_of_part(const RoundedOperand<T>& operand, const FigureGroup<Wide<T>>& group, int64_t part) {
  const int64_t blocks = FigureBlock(operand.shape).count(group.end - group.begin);
  if (blocks == 0) return {};
  std::vector<RoundingFigures> threads(kFigureThreads);
  for (int64_t first = part * kFigureThreads; first < blocks; first += kFigureParts * kFigureThreads) {
    const int64_t count = std::min(kFigureThreads, blocks - first);
    for (int64_t thread = 0; thread < count; ++thread)
      add_block(threads[static_cast<size_t>(thread)], operand, group, first + thread);
  }
  RoundingFigures total = total_of_threads(threads);
  total.decode = group_decode(group.magnitude, operand.shape);
  return total;
}

template <class T>
std::vector<FigureGroup<Wide<T>>> find_groups(const RoundedOperand<T>& operand) {
  const RoundShape& shape = operand.shape;
  const std::vector<int64_t> equal(static_cast<size_t>(shape.groups), shape.rows / shape.groups),
      first = first_rows(operand.counts != nullptr ? operand.counts : equal.data(),
                         {.experts = shape.groups, .rows = shape.rows});
  std::vector<FigureGroup<Wide<T>>> groups;
  for (size_t group = 0; group + 1 < first.size(); ++group)
    groups.push_back({first[group], first[group + 1], operand.magnitudes != nullptr ? operand.magnitudes[group] : 0});
  return groups;
}

}  // namespace

template <class T>
void rounding_errors(RoundingFigures* figures, const RoundedOperand<T>& operand) {
  if (operand.shape.groups == 0) return;
  const std::vector<FigureGroup<Wide<T>>> groups = find_groups(operand);
  std::vector<RoundingFigures> parts(groups.size() * kFigureParts);
  at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      parts[static_cast<size_t>(i)] =
          figures_of_part(operand, groups[static_cast<size_t>(i / kFigureParts)], i % kFigureParts);
  });
  std::vector<RoundingFigures> threads(kFigureThreads);
  for (size_t part = 0; part < parts.size(); ++part) add_figures(threads[part % kFigureThreads], parts[part]);
  add_figures(*figures, total_of_threads(threads));
}

#define MPX_INSTANTIATE(T) template void rounding_errors<T>(RoundingFigures*, const RoundedOperand<T>&)
MPX_FOR_ELEMENTS(MPX_INSTANTIATE);

}  // namespace metroplex::kernels
