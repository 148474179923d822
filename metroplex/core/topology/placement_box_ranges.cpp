#include "topology/placement.h"

#include <algorithm>
#include <numeric>

namespace metroplex::topology {
namespace {

struct LocalDim {
  std::vector<RowRange> ranges;
  int64_t rows = 0, global_rows = 0;

  bool contiguous() const { return ranges.size() == 1 && ranges[0].size == rows; }
  bool is_unsharded() const { return contiguous() && rows == global_rows; }
};

std::vector<LocalDim> local_dims(const std::vector<int64_t>& global_shape, const Placement& placement) {
  std::vector<LocalDim> dims;
  for (size_t d = 0; d < global_shape.size(); ++d) {
    const DimShard* dim_shard = find_shard(placement, static_cast<int>(d));
    dims.push_back({{{0, 0, global_shape[d]}}, global_shape[d], global_shape[d]});
    if (dim_shard != nullptr) dims.back() = {dim_shard->ranges, dim_shard->local_rows(), global_shape[d]};
  }
  return dims;
}

// Iterates over single rows of the dims before `split` and, for each, over the ranges of `split`; later dims are
// taken in full. `offset` is the global offset of the box, `size` its size, `local` its first element.
class BoxVisitor {
 public:
  using Visit = std::function<void(int64_t local)>;
  BoxVisitor(const std::vector<LocalDim>& dims, size_t split, int64_t begin, int64_t end)
      : offset(dims.size()), size(dims.size(), 1), dims_(dims), split_(split), begin_(begin), end_(end) {
    for (size_t d = split; d < dims.size(); ++d) {
      if (dims[d].ranges.empty()) continue;
      offset[d] = dims[d].ranges[0].global;
      size[d] = dims[d].ranges[0].size;
    }
    stride_.assign(dims.size() + 1, 1);
    for (size_t d = dims.size(); d-- > 0;) stride_[d] = stride_[d + 1] * dims[d].rows;
  }

  void run(const Visit& visit) { from(0, 0, visit); }

  std::vector<int64_t> offset, size;

 private:
  bool overlaps(int64_t local, int64_t count) const { return local < end_ && local + count > begin_; }

  void from(size_t d, int64_t local, const Visit& visit) {
    const int64_t stride = stride_[d + 1];
    for (const RowRange& range : dims_[d].ranges) {
      const int64_t first = local + range.local * stride;
      if (!overlaps(first, range.size * stride)) continue;
      if (d == split_) {
        offset[d] = range.global;
        size[d] = range.size;
        visit(first);
        continue;
      }
      for (int64_t row = 0; row < range.size; ++row) {
        if (!overlaps(first + row * stride, stride)) continue;
        offset[d] = range.global + row;
        from(d + 1, first + row * stride, visit);
      }
    }
  }

  const std::vector<LocalDim>& dims_;
  size_t split_;
  int64_t begin_, end_;
  std::vector<int64_t> stride_;
};

// Returns the last dim for which `plain` is false; 0 if it is true for all.
template <class Plain>
size_t find_last_not(const std::vector<LocalDim>& dims, const Plain& plain) {
  size_t split = dims.size() - 1;
  while (split > 0 && plain(dims[split])) --split;
  return split;
}

}  // namespace

std::vector<BoxRange> box_ranges(const std::vector<int64_t>& global_shape, const Placement& placement, int64_t begin,
                                 int64_t end) {
  std::vector<BoxRange> boxes;
  if (begin >= end) return boxes;
  if (global_shape.empty()) return {{{}, {}, begin, end, begin}};
  const std::vector<LocalDim> dims = local_dims(global_shape, placement);
  BoxVisitor visitor(dims, find_last_not(dims, [](const LocalDim& dim) { return dim.contiguous(); }), begin, end);
  visitor.run([&](int64_t first) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + numel(visitor.size));
    if (from < to) boxes.push_back({visitor.offset, visitor.size, from - first, to - first, from});
  });
  return boxes;
}

void for_each_range(const std::vector<int64_t>& global_shape, const Placement& placement,
                    const std::function<void(int64_t local, int64_t global, int64_t count)>& visit) {
  if (global_shape.empty()) return visit(0, 0, 1);
  const std::vector<LocalDim> dims = local_dims(global_shape, placement);
  const int64_t elements = numel(local_shape(global_shape, placement));
  BoxVisitor visitor(dims, find_last_not(dims, [](const LocalDim& dim) { return dim.is_unsharded(); }), 0, elements);
  visitor.run([&](int64_t first) {
    int64_t global = 0;
    for (size_t d = 0; d < dims.size(); ++d) global = global * global_shape[d] + visitor.offset[d];
    visit(first, global, numel(visitor.size));
  });
}

}  // namespace metroplex::topology
