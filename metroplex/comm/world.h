// World = RankGrid + a backend: every group a rank belongs to, made once, handed down as values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/group.h"
#include "topology/rank_grid.h"

namespace metroplex::comm {

// The groups of one rank. Names as Megatron's; `batch` has the members of tp on a communicator of its own, for the
// broadcast of the data.
struct Groups {
  Group world, tp, cp, dp, pp, dp_cp, model_parallel /* tp-pp */, tp_dp_cp;
  Group embedding;  // first and last stage of the pipeline (a group of one when pp = 1); size() 1 and index 0 on
                    // other stages
  Group batch;
};

class World {
 public:
  World(int rank, topology::RankGrid grid, Groups groups)
      : rank_(rank), grid_(std::move(grid)), groups_(std::move(groups)) {}
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(grid_.world_size()); }
  const topology::RankGrid& grid() const { return grid_; }
  const Groups& groups() const { return groups_; }

 private:
  int rank_;
  topology::RankGrid grid_;
  Groups groups_;
};

// Makes the communicator of `ranks` (two or more, in group order) for the calling rank.
using GroupFactory =
    std::function<std::shared_ptr<GroupBackend>(const std::string& name, const std::vector<int>& ranks)>;
class Traffic;  // backends/sim.h

Groups make_groups(int rank, const topology::RankGrid& grid, const GroupFactory& factory);
World make_world(int rank, const topology::RankGrid& grid, const GroupFactory& factory);
// Counts what passes through the groups; an empty `factory` makes groups that move nothing.
GroupFactory counted(GroupFactory factory, std::shared_ptr<Traffic> traffic);

// "rank 3 (tp 1 pp 0 dp 1)"; keeps a copy of the grid.
DescribeRank describe_in(const topology::RankGrid& grid);

}  // namespace metroplex::comm
