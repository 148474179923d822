#include "topology/ordered_grid.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace metroplex::topology {

namespace {

struct Dimension {
  int size;
  int stride;
};

// Returns every combination of steps along `dimensions`, first one fastest.
Ranks combinations(const std::vector<Dimension>& dimensions) {
  Ranks ranks{0};
  for (const auto& [size, stride] : dimensions) {
    const size_t before = ranks.size();
    ranks.reserve(before * size);
    for (int step = 1; step < size; ++step) {
      for (size_t k = 0; k < before; ++k) { ranks.push_back(ranks[k] + step * stride); }
    }
  }
  return ranks;
}

RankGroups shift_groups(const Ranks& members, const Ranks& firsts, int rank_offset) {
  RankGroups groups(firsts.size());
  for (size_t g = 0; g < firsts.size(); ++g) {
    groups[g].resize(members.size());
    for (size_t m = 0; m < members.size(); ++m) { groups[g][m] = rank_offset + firsts[g] + members[m]; }
  }
  return groups;
}

// Axes of one ordered grid, in the order in which omitted axes are appended.
constexpr Axis kGridAxes[] = {Axis::tp, Axis::pp, Axis::dp, Axis::ep, Axis::cp, Axis::gtp};

int axis_size(const GridSizes& sizes, Axis axis) {
  switch (axis) {
    case Axis::tp:
      return sizes.tp;
    case Axis::gtp:
      return sizes.gtp;
    case Axis::cp:
      return sizes.cp;
    case Axis::dp:
      return sizes.dp;
    case Axis::pp:
      return sizes.pp;
    case Axis::ep:
      return sizes.ep;
    default:
      return 1;
  }
}

std::vector<Axis> parse_order(const std::string& order) {
  std::vector<Axis> axes;
  for (const std::string& text : split_names(order)) {
    const auto* const known =
        std::find_if(std::begin(kGridAxes), std::end(kGridAxes), [&](Axis one) { return text == name(one); });
    const std::string near = base::nearest_name(text, std::vector<std::string>{"tp", "cp", "ep", "dp", "pp"});
    MPX_CHECK(known != std::end(kGridAxes), "topology", "parallel.order '", order, "' names '", text, "'",
              near.empty() ? "" : ", did you mean '" + near + "'?",
              "; an order is made of tp, cp, ep, dp, pp (the experts' tp and dp stand where tp and dp do)");
    const Axis axis = *known;
    MPX_CHECK(std::find(axes.begin(), axes.end(), axis) == axes.end(), "topology", "parallel.order '", order,
              "' names ", text, " twice; name each axis once");
    axes.push_back(axis);
  }
  return axes;
}

}  // namespace

RankGroups masked_orthogonal_groups(int world, const std::vector<int>& sizes, const std::vector<bool>& mask) {
  MPX_CHECK(sizes.size() == mask.size(), "topology", sizes.size(), " sizes but ", mask.size(),
            " mask entries; give one each");
  std::vector<Dimension> inside, outside;
  int64_t stride = 1;
  for (size_t k = 0; k < sizes.size(); ++k) {
    MPX_CHECK(sizes[k] > 0, "topology", "size ", sizes[k], " of axis ", k, " must be at least 1");
    (mask[k] ? inside : outside).push_back({sizes[k], static_cast<int>(stride)});
    stride *= sizes[k];
    MPX_CHECK(stride <= std::max(world, 0), "topology", "the sizes multiply to more than the world of ", world);
  }
  MPX_CHECK(stride == world, "topology", "the sizes multiply to ", stride, ", the world has ", world, " ranks");
  return shift_groups(combinations(inside), combinations(outside), 0);
}

OrderedGrid::OrderedGrid(GridSizes sizes) : sizes_(std::move(sizes)), axes_(parse_order(sizes_.order)) {
  MPX_CHECK(sizes_.ep == 1 || sizes_.cp == 1, "topology", "ep ", sizes_.ep, " and cp ", sizes_.cp,
            " are both above 1 in one grid; cp belongs to the dense grid, ep to the grid of the experts");
  std::string full;
  for (Axis axis : axes_) full += (full.empty() ? "" : "-") + std::string(name(axis));
  for (Axis axis : kGridAxes) {
    if (std::find(axes_.begin(), axes_.end(), axis) != axes_.end()) continue;
    MPX_CHECK(axis_size(sizes_, axis) == 1, "topology", name(axis), " is ", axis_size(sizes_, axis),
              ", but parallel.order '", sizes_.order, "' leaves it out; add ", name(axis), " to the order");
    axes_.push_back(axis);
    full += "-" + std::string(name(axis));
  }
  sizes_.order = full;
  int64_t product = 1;
  for (Axis axis : axes_) {
    const int size = axis_size(sizes_, axis);
    MPX_CHECK(size > 0, "topology", name(axis), " is ", size, "; every degree is at least 1");
    size_[static_cast<int>(axis)] = size;
    stride_[static_cast<int>(axis)] = static_cast<int>(product);
    product *= size;
    MPX_CHECK(product <= std::numeric_limits<int>::max(), "topology", "a grid of more than 2^31 ranks; lower ",
              name(axis), " = ", size);
  }
  num_ranks_ = static_cast<int>(product);
}

int OrderedGrid::coordinate(int rank, Axis axis) const {
  if (size(axis) == 1) return 0;
  return (rank - sizes_.rank_offset) / stride(axis) % size(axis);
}

Ranks OrderedGrid::offsets(AxisSet axes, bool inside) const {
  std::vector<Dimension> dimensions;
  for (Axis axis : axes_) {
    if (axes.contains(axis) == inside) dimensions.push_back({size(axis), stride(axis)});
  }
  return combinations(dimensions);
}

RankGroups OrderedGrid::groups(AxisSet axes) const {
  return shift_groups(offsets(axes, true), offsets(axes, false), sizes_.rank_offset);
}

Ranks OrderedGrid::group_ranks(int rank, AxisSet axes) const {
  int first = rank;
  for (Axis axis : axes_) {
    if (axes.contains(axis)) first -= coordinate(rank, axis) * stride(axis);
  }
  Ranks members = offsets(axes, true);
  for (int& member : members) { member += first; }
  return members;
}

int OrderedGrid::index_in_group(int rank, AxisSet axes) const {
  int index = 0, before = 1;
  for (const Axis axis : axes_) {
    if (!axes.contains(axis)) continue;
    index += coordinate(rank, axis) * before;
    before *= size(axis);
  }
  return index;
}

}  // namespace metroplex::topology
