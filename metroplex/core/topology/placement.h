// Position of a rank's tensor in the global tensor, as plain integers. It holds the dims split over axes, the axes
// over which the gradient must still be summed, and the ranks that share the parameter. The functions below derive
// replicas, counting and saving from it. ZeRO shards are not part of it: they are flat ranges of the local tensor
// (box_ranges combines both).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "topology/axis.h"

namespace metroplex::topology {

struct Coordinates;  // rank_grid.h

// The grid whose axes apply to a parameter: routed experts have their own grid over the same ranks.
enum class Grid : uint8_t { dense, expert };

// Purpose of a parameter. Expert weights and biases are weights and biases of the expert grid. qk_norm: the scale of
// a norm over queries or keys.
enum class Role : uint8_t { weight, bias, norm, qk_norm, embedding, output, router };

// Rows [local, local + size) of the local tensor equal rows [global, global + size) of the global one, along one dim.
struct RowRange {
  int64_t local = 0, global = 0, size = 0;
};

// The split of one dim over `axes`. The local tensor has the rows of `ranges`, ascending by `local`. Rows in no range
// are padding: they are 0, not counted and not saved.
struct DimShard {
  int dim = 0;
  AxisSet axes;
  std::vector<RowRange> ranges;
  int64_t rows = 0;  // of the local tensor, including padding; 0: the sum of the ranges

  int64_t valid_rows() const;
  int64_t local_rows() const { return rows > 0 ? rows : valid_rows(); }
};

// A named region of the global tensor, rows [begin, begin + size) of `dim`: gate and up of fc1; q, k and v of a query
// group; an expert of a stack.
struct Region {
  std::string name;  // full name, as for a separate parameter
  int dim = 0;
  int64_t begin = 0, size = 0;
  // Regions with equal names form one matrix for a matrix optimizer, such as the queries of all groups. Empty: the
  // region is not a matrix but belongs to the matrix of the full tensor.
  std::string matrix = {};
};

struct Placement {
  Grid grid = Grid::dense;
  std::vector<DimShard> cuts = {};  // at most one per dim; the local tensor is row-major
  AxisSet partial = {};             // each rank has a partial gradient; the sum over these axes is complete
  // Name of the sharing group: parameters with this name on several stages or chunks are one. The first holder in
  // model order owns it, counts it and saves it. The gradient is the sum over all holders.
  std::string shared = {};
  Role role = Role::weight;
  std::vector<Region> regions = {};
};

// Returns the even split of `global_rows` over the ranks of `axes`: the rows of rank `index` of `count`. Throws
// base::Error if `count` does not divide the rows.
DimShard even_shard(int dim, AxisSet axes, int64_t global_rows, int count, int index);
// Splits each of several consecutive sections of the rows evenly.
DimShard even_shards(int dim, AxisSet axes, const std::vector<int64_t>& sections, int count, int index);

// Returns the experts of a stack [experts, ...] as matrices. Region e is <module>.local_experts.<e>.<tensor>,
// Megatron-LM's name for the tensor of global expert e.
std::vector<Region> expert_regions(const std::string& module, int64_t num_experts, const std::string& tensor);

// Returns the split of `dim`, or null.
const DimShard* find_shard(const Placement& placement, int dim);
AxisSet sharded_axes(const Placement& placement);
// Returns the axes along which ranks hold the same parameters and process different data: dense dp and cp, expert
// edp.
AxisSet data_parallel_axes(Grid grid);
// Returns the axes along which ranks hold the same elements without being data-parallel replicas: the axes of the
// grid except split axes, pp and data-parallel axes.
AxisSet replicating_axes(const Placement& placement);
// Returns true on exactly one rank, the first, among those that hold the same elements at one data-parallel position.
// Ignores other holders of a sharing group.
bool counts(const Placement& placement, const Coordinates& at);

// True if weight decay applies: not for biases and 1-D tensors.
bool has_weight_decay(const Placement& placement, size_t num_dims);
// True if a matrix optimizer (Muon) updates it: 2-D weights and routers as one matrix, and any tensor with regions
// that are matrices. Embeddings, the output layer, norms and biases are excluded.
bool has_matrices(const Placement& placement, size_t num_dims);

int64_t numel(const std::vector<int64_t>& shape);

std::vector<int64_t> local_shape(std::vector<int64_t> global_shape, const Placement& placement);
int64_t padding_numel(const std::vector<int64_t>& global_shape, const Placement& placement);

// Mapping of local elements to the global tensor, as ranges that are contiguous in both tensors, and as ranges of
// boxes for checkpoints. Depends only on shapes, splits and flat ranges.

// The elements [begin, end) of a box of the global tensor, in row-major order. They start at element `local` of the
// local tensor.
struct BoxRange {
  std::vector<int64_t> offset, size;
  int64_t begin = 0, end = 0;
  int64_t local = 0;
};

// Covers elements [begin, end) of the flat local tensor, in ascending order of `local`, without padding. Each box is
// as large as possible while its elements are contiguous in the local tensor.
std::vector<BoxRange> box_ranges(const std::vector<int64_t>& global_shape, const Placement& placement, int64_t begin,
                                 int64_t end);

// Calls visit(local, global, count) for flat ranges that are contiguous in both tensors. Together they cover all
// elements except padding exactly once.
void for_each_range(const std::vector<int64_t>& global_shape, const Placement& placement,
                    const std::function<void(int64_t local, int64_t global, int64_t count)>& visit);

}  // namespace metroplex::topology
