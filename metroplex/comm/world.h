// World = RankGrid + a backend: every group a rank belongs to, made once, handed down as values.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/group.h"
#include "cuda/launch_point.h"
#include "topology/rank_grid.h"

namespace metroplex::comm {

// The groups of one rank. Names as Megatron's. Members that do several things together have a group for each purpose.
struct Groups {
  Group world, checkpoint;  // all ranks
  Group tp, cp;             // in layers
  // The levels of cp (parallel.hierarchical_context_parallel_sizes): neighbours, which exchange tokens for heads, and
  // the ranks at the same place of all runs of neighbours. Groups of one where cp has no levels.
  Group cp_a2a, cp_p2p;
  Group pp, stages;  // messages of the pipeline, and what its ranks agree on between steps
  Group batch;       // of tp: the broadcast of the data
  // All below carry gradients and what is done with them.
  Group dp, dp_cp, model_parallel /* tp-pp */, tp_gradients;
  // dp_cp cut into parallel.num_distributed_optimizer_instances equal runs (Megatron's partial data parallel): the
  // own run, and the ranks at the same place of all runs. One instance: dp_cp itself and a group of one.
  Group intra_dp_cp, inter_dp_cp;
  Group etp, ep, edp;  // of the expert grid

  // The group for gradients that spans `axes`, one of tp, dp, dp-cp, tp-pp, etp, ep, edp.
  const Group& gradients_over(topology::AxisSet axes) const;
};

// Makes the communicator of a group of two or more ranks for the calling one.
using GroupFactory = std::function<std::shared_ptr<GroupBackend>(const GroupSpec& spec)>;

class World {
 public:
  // Keeps the factory, for make_group.
  World(int rank, topology::RankGrid grid, GroupFactory factory, c10::Device device = c10::kCPU);
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(grid_.world_size()); }
  const topology::RankGrid& grid() const { return grid_; }
  topology::Coordinates coordinates() const { return grid_.coordinates(rank_); }
  const Groups& groups() const { return groups_; }
  // A group beside those above, this rank among its members. All of them make it, and in the same order where they
  // make several.
  Group make_group(const GroupSpec& spec) const;
  // Where this rank's tensors live: the device that computes, which is the current one of the rank's thread, or meta.
  c10::Device device() const { return target_.memory(); }
  const cuda::Target& target() const { return target_; }
  // The same rank, whose calls of groups and of kernels with its target `recorder` is told of; not of those of
  // Groups::checkpoint, which no step uses and another thread may. It outlives the world, and what is made with it.
  World recorded(cuda::Recorder& recorder) const;

 private:
  friend World make_meta_world(int rank, const topology::RankGrid& grid, c10::Device device,
                               cuda::Recorder* recorder);
  int rank_;
  topology::RankGrid grid_;
  GroupFactory factory_;
  Groups groups_;
  cuda::Target target_;
};

// One rank of `grid` without the others and without values: its tensors are on the meta device and take the paths of
// `device`; every other rank is taken for its equal (make_mirror_backend). `recorder` (may be null) is told of all
// calls.
World make_meta_world(int rank, const topology::RankGrid& grid, c10::Device device, cuda::Recorder* recorder);

class Traffic;  // backends/counting.h

Groups make_groups(int rank, const topology::RankGrid& grid, const GroupFactory& factory);
World make_world(int rank, const topology::RankGrid& grid, const GroupFactory& factory,
                 c10::Device device = c10::kCPU);
// Groups of equal members and equal purpose get one communicator, called by the name that asked first.
GroupFactory shared(GroupFactory factory);
// Counts what passes through the groups; an empty `factory` makes groups that move nothing.
GroupFactory counted(GroupFactory factory, std::shared_ptr<Traffic> traffic);

// "rank 3 (tp 1 pp 0 dp 1)"; keeps a copy of the grid.
DescribeRank describe_in(const topology::RankGrid& grid);

}  // namespace metroplex::comm
