// How the tensor of one rank lies in the whole one, as a value of integers: which dims are cut over which axes, over
// which axes the gradient has still to be summed, which ranks share the parameter. Which rank is a replica, which
// counts and which saves follow from it, by the functions below and nowhere else. What data-parallel ranks keep of a
// local tensor (ZeRO) is no part of it: that is a flat range of the local tensor (box_ranges brings both together).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "topology/axis.h"

namespace metroplex::topology {

struct Coordinates;  // rank_grid.h

// Whose axes a parameter lies on: routed experts have a grid of their own over the same ranks.
enum class Grid : uint8_t { dense, expert };

// What a parameter is for; experts' weights and biases are weights and biases of the expert grid. qk_norm: the scale
// of a norm over queries or keys.
enum class Role : uint8_t { weight, bias, norm, qk_norm, embedding, output, router };

// Rows [local, local + size) of the local tensor are rows [global, global + size) of the whole one, along one dim.
struct RowRange {
  int64_t local = 0, global = 0, size = 0;
};

// One dim split over `axes`: the local tensor has the rows of `ranges`, in ascending order of `local`; rows in no
// range are padding, which is 0, counted by nobody and in no checkpoint.
struct Cut {
  int dim = 0;
  AxisSet axes;
  std::vector<RowRange> ranges;
  int64_t rows = 0;  // of the local tensor, padding included; 0: the sum of the ranges

  int64_t valid_rows() const;
  int64_t local_rows() const { return rows > 0 ? rows : valid_rows(); }
};

// A named region of the whole tensor, rows [begin, begin + size) of `dim`: gate and up of fc1; q, k and v of a query
// group; an expert of a stack.
struct Part {
  std::string name;  // in full, as a parameter of its own would be called
  int dim = 0;
  int64_t begin = 0, size = 0;
  // Regions with the same name here form one matrix for an optimizer of matrices, such as the queries of all groups.
  // Empty: the region is not a matrix, it belongs to the matrix of the whole tensor.
  std::string matrix = {};
};

struct Placement {
  Grid grid = Grid::dense;
  std::vector<Cut> cuts = {};  // at most one a dim; the local tensor is row-major over what they leave
  AxisSet partial = {};        // the gradient of each rank is its summand only: summed over these axes it is whole
  // Names the sharing group: parameters of this name on several stages or chunks are one. The first holder in the
  // order of the model owns it: it counts and saves; the gradient is the sum over all holders.
  std::string shared = {};
  Role role = Role::weight;
  std::vector<Part> parts = {};
};

// The even split of `global_rows` over the ranks of `axes`: the rows of rank `index` of `count`. Throws base::Error
// when the count does not divide the rows.
Cut even_cut(int dim, AxisSet axes, int64_t global_rows, int count, int index);

// The experts of a stack [experts, ...] as matrices: part e is <module>.local_experts.<e>.<tensor>, as Megatron-LM
// calls the tensor of the global expert e.
std::vector<Part> expert_parts(const std::string& module, int64_t num_experts, const std::string& tensor);

// The cut of `dim`, or null.
const Cut* cut_of(const Placement& placement, int dim);
AxisSet cut_axes(const Placement& placement);
// Axes along which ranks hold the same parameters of a family and see other data: dense dp and cp, expert edp.
AxisSet data_parallel_axes(Grid grid);
// Axes along which ranks hold the same elements although they are no copies for other data: those of the grid without
// the cuts', pp and the data-parallel ones.
AxisSet replicating_axes(const Placement& placement);
// Of all ranks that hold the same elements at one data-parallel place, exactly one says true: the first one. Holders
// of a sharing group are not looked at.
bool counts(const Placement& placement, const Coordinates& at);

// Whether weight decay acts on it: not on biases, and not on what has one dim.
bool decays(const Placement& placement, size_t num_dims);
// Whether an optimizer of matrices (Muon) takes it: weights and routers of two dims, as one matrix, and whatever has
// parts that are matrices of their own. Embeddings, the output layer, norms and biases are none.
bool has_matrices(const Placement& placement, size_t num_dims);

int64_t numel(const std::vector<int64_t>& shape);

std::vector<int64_t> local_shape(std::vector<int64_t> global_shape, const Placement& placement);
// Elements of the local tensor that are padding.
int64_t padding_numel(const std::vector<int64_t>& global_shape, const Placement& placement);

// Where the elements of a local tensor lie in the whole one: as runs that are contiguous in both, and as ranges of
// boxes, the language of checkpoints. Integers only: shapes, cuts and flat ranges.

// The elements [begin, end) of a box of the whole tensor, in row-major order; they start at `local` of the local
// tensor.
struct BoxRange {
  std::vector<int64_t> offset, size;
  int64_t begin = 0, end = 0;
  int64_t local = 0;
};

// Elements [begin, end) of the flat local tensor, in ascending order of `local`; padding is left out. Every box is as
// large as it can be with its elements contiguous in the local tensor.
std::vector<BoxRange> box_ranges(const std::vector<int64_t>& global_shape, const Placement& placement, int64_t begin,
                                 int64_t end);

// Calls visit(local, global, count) for flat runs that are contiguous in both tensors; together they are all elements
// that are no padding, once each.
void for_each_run(const std::vector<int64_t>& global_shape, const Placement& placement,
                  const std::function<void(int64_t local, int64_t global, int64_t count)>& visit);

}  // namespace metroplex::topology
