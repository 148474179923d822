// World holds a RankGrid and one communicator per group of the rank. Groups are created once and passed as values.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/group.h"
#include "device/launch_point.h"
#include "topology/rank_grid.h"

namespace metroplex::comm {

// The groups of one rank, with Megatron's names. Ranks that communicate for several purposes have one group per
// purpose.
struct Groups {
  Group world, checkpoint;  // all ranks
  Group tp, cp;             // within layers
  // Levels of cp (parallel.hierarchical_context_parallel_sizes). cp_a2a: adjacent ranks, which exchange tokens for
  // heads. cp_p2p: the ranks at the same position in all sets of adjacent ranks. Both are groups of one if cp has no
  // levels.
  Group cp_a2a, cp_p2p;
  Group pp, stages;  // pp: pipeline messages; stages: agreement between steps
  Group batch;       // over tp: broadcast of data
  // The groups below carry gradients and optimizer communication.
  Group dp, dp_cp, model_parallel /* tp-pp */, tp_gradients;
  // dp_cp divided into parallel.num_distributed_optimizer_instances equal ranges (Megatron's partial data parallel).
  // intra: the range of this rank; inter: the ranks at the same position in all ranges. With one instance intra is
  // dp_cp and inter a group of one.
  Group intra_dp_cp, inter_dp_cp;
  Group etp, ep, edp;  // expert grid

  // Returns the gradient group that spans `axes`, one of tp, dp, dp-cp, tp-pp, etp, ep, edp.
  const Group& gradient_group(topology::AxisSet axes) const;
};

// Ends the run from any thread: all ranks and the launcher receive the failure of this rank.
using EndRun = std::function<void(const std::exception_ptr& failure)>;

// Creates the communicator of a group of two or more ranks for the calling rank.
using GroupFactory = std::function<std::shared_ptr<GroupBackend>(const GroupSpec& spec)>;

class World {
 public:
  World(int rank, topology::RankGrid grid, GroupFactory factory, c10::Device device = c10::kCPU,
        EndRun end_run = nullptr);
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(grid_.world_size()); }
  const topology::RankGrid& grid() const { return grid_; }
  topology::Coordinates coordinates() const { return grid_.coordinates(rank_); }
  const Groups& groups() const { return groups_; }
  // Creates an additional group that contains this rank. Collective over its members; members that create several
  // groups must use the same order.
  Group make_group(const GroupSpec& spec) const;
  // The same for collectives in layers, with the ranks that differ from this one only in `axes`.
  Group make_layer_group(const char* name, topology::AxisSet axes) const;
  // The device of this rank's tensors: its compute device, which is the current device of its thread, or meta.
  c10::Device device() const { return target_.memory(); }
  const device::Target& target() const { return target_; }
  // Null if the ranks are threads.
  const EndRun& end_run() const { return end_run_; }
  // Returns the same rank with all group calls and kernel launches reported to `recorder`. Groups::checkpoint is
  // excluded: no step uses it, and another thread may. `recorder` must outlive the world and every object made with
  // it.
  World recorded(device::Recorder& recorder) const;
  // The same with group calls only.
  World with_recorded_groups(device::Recorder& recorder) const;

 private:
  friend World make_meta_world(int rank, const topology::RankGrid& grid, c10::Device device,
                               device::Recorder* recorder, int capability);
  int rank_;
  topology::RankGrid grid_;
  GroupFactory factory_;
  Groups groups_;
  device::Target target_;
  EndRun end_run_;
};

// Creates one rank of `grid` without the other ranks and without values. Its tensors are on the meta device and take
// the code paths of `device`. All other ranks are assumed equal to it (make_mirror_backend). `recorder` may be null;
// it receives all calls. `capability`: device::Target::meta_capability.
World make_meta_world(int rank, const topology::RankGrid& grid, c10::Device device, device::Recorder* recorder,
                      int capability = 0);

class Traffic;  // backends/counting.h

Groups make_groups(int rank, const topology::RankGrid& grid, const GroupFactory& factory);
World make_world(int rank, const topology::RankGrid& grid, const GroupFactory& factory,
                 c10::Device device = c10::kCPU, EndRun end_run = nullptr);
// Groups with equal members and equal purpose get one communicator, named after the first group that requests it.
GroupFactory share_communicators(GroupFactory factory);
// Counts the traffic of the groups. With an empty `factory` the groups move nothing.
GroupFactory count_traffic(GroupFactory factory, std::shared_ptr<Traffic> traffic);

// Returns a formatter for "rank 3 (tp 1 pp 0 dp 1)". It keeps a copy of the grid.
RankFormatter rank_formatter(const topology::RankGrid& grid);

}  // namespace metroplex::comm
