#include "topology/placement.h"

#include <functional>
#include <numeric>

#include "base/error.h"
#include "topology/rank_grid.h"

namespace metroplex::topology {
namespace {

AxisSet grid_axes(Grid grid) {
  AxisSet axes;
  for (const AxisInfo& axis : kAxes) {
    if (grid == Grid::dense ? axis.dense : axis.expert) axes.insert(axis.axis);
  }
  return axes;
}

}  // namespace

int64_t numel(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t DimShard::valid_rows() const {
  return std::accumulate(ranges.begin(), ranges.end(), int64_t{0},
                         [](int64_t sum, const RowRange& range) { return sum + range.size; });
}

DimShard even_shard(int dim, AxisSet axes, int64_t global_rows, int count, int index) {
  MPX_CHECK(count > 0 && global_rows % count == 0, "topology", global_rows, " rows cannot be split evenly over ",
            count, " ranks of ", to_string(axes), "; choose a number of ranks that divides them");
  const int64_t rows = global_rows / count;
  return {dim, axes, {{0, index * rows, rows}}, 0};
}

DimShard even_shards(int dim, AxisSet axes, const std::vector<int64_t>& sections, int count, int index) {
  DimShard shard{dim, axes, {}, 0};
  int64_t begin = 0, local = 0;
  for (const int64_t rows : sections) {
    const RowRange range = even_shard(dim, axes, rows, count, index).ranges.front();
    shard.ranges.push_back({local, begin + range.global, range.size});
    begin += rows, local += range.size;
  }
  return shard;
}

std::vector<Region> expert_regions(const std::string& module, int64_t num_experts, const std::string& tensor) {
  std::vector<Region> regions;
  const std::string first = module + ".local_experts.";
  for (int64_t e = 0; e < num_experts; ++e) {
    const std::string name = first + std::to_string(e) + "." + tensor;
    regions.push_back({name, 0, e, 1, name});
  }
  return regions;
}

const DimShard* find_shard(const Placement& placement, int dim) {
  for (const DimShard& dim_shard : placement.cuts) {
    if (dim_shard.dim == dim) return &dim_shard;
  }
  return nullptr;
}

AxisSet sharded_axes(const Placement& placement) {
  AxisSet axes;
  for (const DimShard& dim_shard : placement.cuts) axes = axes | dim_shard.axes;
  return axes;
}

AxisSet data_parallel_axes(Grid grid) {
  return grid == Grid::dense ? AxisSet{Axis::dp, Axis::cp} : AxisSet{Axis::edp};
}

AxisSet replicating_axes(const Placement& placement) {
  return grid_axes(placement.grid) - sharded_axes(placement) - Axis::pp - data_parallel_axes(placement.grid);
}

bool counts(const Placement& placement, const Coordinates& at) {
  const AxisSet axes = replicating_axes(placement);
  for (const AxisInfo& axis : kAxes) {
    if (axes.contains(axis.axis) && at.at(axis.axis) != 0) return false;
  }
  return true;
}

bool has_weight_decay(const Placement& placement, size_t num_dims) {
  return placement.role != Role::bias && num_dims > 1;
}

bool has_matrices(const Placement& placement, size_t num_dims) {
  if (placement.role != Role::weight && placement.role != Role::router) return false;
  for (const Region& region : placement.regions) {
    if (!region.matrix.empty()) return true;
  }
  return num_dims == 2;
}

std::vector<int64_t> local_shape(std::vector<int64_t> global_shape, const Placement& placement) {
  for (const DimShard& dim_shard : placement.cuts)
    global_shape.at(static_cast<size_t>(dim_shard.dim)) = dim_shard.local_rows();
  return global_shape;
}

int64_t padding_numel(const std::vector<int64_t>& global_shape, const Placement& placement) {
  std::vector<int64_t> valid = global_shape;
  for (const DimShard& dim_shard : placement.cuts)
    valid.at(static_cast<size_t>(dim_shard.dim)) = dim_shard.valid_rows();
  return numel(local_shape(global_shape, placement)) - numel(valid);
}

}  // namespace metroplex::topology
