#include "comm/world.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "comm/backends/backend.h"
#include "comm/backends/recording.h"
#include "comm/backends/counting.h"
#include "topology/megatron_groups.h"

namespace metroplex::comm {

namespace {

Group make_rank_group(int rank, const GroupSpec& spec, const GroupFactory& factory) {
  const auto index = static_cast<int>(std::find(spec.ranks.begin(), spec.ranks.end(), rank) - spec.ranks.begin());
  return Group(spec, index, spec.ranks.size() > 1 ? factory(spec) : nullptr);
}

struct AxesGroup {
  topology::AxisSet axes;
  Group Groups::*group;
};
constexpr AxesGroup kGradientGroups[] = {{topology::Axis::tp, &Groups::tp_gradients},
                                         {topology::Axis::dp, &Groups::dp},
                                         {{topology::Axis::dp, topology::Axis::cp}, &Groups::dp_cp},
                                         {{topology::Axis::tp, topology::Axis::pp}, &Groups::model_parallel},
                                         {topology::Axis::etp, &Groups::etp},
                                         {topology::Axis::ep, &Groups::ep},
                                         {topology::Axis::edp, &Groups::edp}};

// All groups except checkpoint.
std::vector<Group*> list_step_groups(Groups& groups) {
  return {&groups.world,
          &groups.tp,
          &groups.cp,
          &groups.cp_a2a,
          &groups.cp_p2p,
          &groups.pp,
          &groups.stages,
          &groups.batch,
          &groups.dp,
          &groups.dp_cp,
          &groups.model_parallel,
          &groups.tp_gradients,
          &groups.intra_dp_cp,
          &groups.inter_dp_cp,
          &groups.etp,
          &groups.ep,
          &groups.edp};
}

Group observed(const Group& group, device::Recorder& recorder) {
  if (group.size() == 1) return group;
  const auto owner = std::make_shared<Group>(group);
  const std::shared_ptr<GroupBackend> backend(owner, &owner->backend());
  recorder.joins(group.name(), to_string(group.purpose()), group.ranks());
  return Group({group.name(), group.purpose(), group.ranks()}, group.index(),
               make_observing_backend(group.name(), recorder, backend));
}

}  // namespace

const Group& Groups::gradient_group(topology::AxisSet axes) const {
  for (const AxesGroup& entry : kGradientGroups) {
    if (entry.axes == axes) return this->*entry.group;
  }
  MPX_ASSERT(false, "no group for gradients spans '", topology::to_string(axes), "'");
}

World::World(int rank, topology::RankGrid grid, GroupFactory factory, c10::Device device, EndRun end_run)
    : rank_(rank),
      grid_(std::move(grid)),
      factory_(std::move(factory)),
      groups_(make_groups(rank, grid_, factory_)),
      target_{device},
      end_run_(std::move(end_run)) {}

Group World::make_group(const GroupSpec& spec) const { return make_rank_group(rank_, spec, factory_); }

Group World::make_layer_group(const char* name, topology::AxisSet axes) const {
  return make_group({name, Purpose::layers, grid_.group_ranks(rank_, axes)});
}

Groups make_groups(int rank, const topology::RankGrid& grid, const GroupFactory& factory) {
  using topology::Axis;
  const auto make = [&](const std::string& name, Purpose purpose, const std::vector<int>& ranks) {
    return make_rank_group(rank, {name, purpose, ranks}, factory);
  };
  const auto family = [&](const std::string& name, Purpose purpose, topology::AxisSet axes) {
    return make(name, purpose, grid.group_ranks(rank, axes));
  };
  Groups groups;
  // Created first, so its communicator has this name in every layout. Ranks with different hand-written layouts meet
  // in it and detect the mismatch.
  std::vector<int> everyone(static_cast<size_t>(grid.world_size()));
  for (size_t i = 0; i < everyone.size(); ++i) everyone[i] = static_cast<int>(i);
  groups.world = make("world", Purpose::run, everyone);
  groups.stages = family("stages", Purpose::run, Axis::pp);
  groups.checkpoint = make("checkpoint", Purpose::checkpoint, everyone);
  groups.tp = family("tp", Purpose::layers, Axis::tp);
  groups.cp = family("cp", Purpose::layers, Axis::cp);
  const auto level = [&](const std::string& name, size_t k) {
    if (grid.context_levels().empty()) return make(name, Purpose::layers, {rank});
    const auto levels = topology::hierarchical_groups(groups.cp.ranks(), grid.context_levels());
    for (const topology::Ranks& members : levels.at(k)) {
      if (std::find(members.begin(), members.end(), rank) != members.end())
        return make(name, Purpose::layers, members);
    }
    MPX_ASSERT(false, "rank ", rank, " is in no group of its level");
  };
  groups.cp_a2a = level("cp-a2a", 0);
  groups.cp_p2p = level("cp-p2p", 1);
  groups.pp = family("pp", Purpose::pipeline, Axis::pp);
  groups.batch = family("batch", Purpose::batch, Axis::tp);
  groups.dp = family("dp", Purpose::gradients, Axis::dp);
  groups.dp_cp = family("dp-cp", Purpose::gradients, {Axis::dp, Axis::cp});
  groups.model_parallel = family("tp-pp", Purpose::gradients, {Axis::tp, Axis::pp});
  groups.tp_gradients = family("tp-gradients", Purpose::gradients, Axis::tp);
  const auto instances = static_cast<size_t>(grid.num_distributed_optimizer_instances());
  groups.intra_dp_cp = groups.dp_cp;
  groups.inter_dp_cp = make("inter-dp-cp", Purpose::gradients, {rank});
  if (instances > 1) {
    const std::vector<int>& all = groups.dp_cp.ranks();
    const size_t run = all.size() / instances, index = static_cast<size_t>(groups.dp_cp.index());
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index / run * run);
    groups.intra_dp_cp = make("intra-dp-cp", Purpose::gradients, {begin, begin + static_cast<std::ptrdiff_t>(run)});
    std::vector<int> peers;
    for (size_t i = index % run; i < all.size(); i += run) peers.push_back(all[i]);
    groups.inter_dp_cp = make("inter-dp-cp", Purpose::gradients, peers);
  }
  groups.etp = family("etp", Purpose::gradients, Axis::etp);
  groups.ep = family("ep", Purpose::gradients, Axis::ep);
  groups.edp = family("edp", Purpose::gradients, Axis::edp);
  return groups;
}

World World::recorded(device::Recorder& recorder) const {
  World world = *this;
  for (Group* group : list_step_groups(world.groups_)) *group = group->recorded(recorder);
  world.factory_ = [factory = factory_, &recorder](const GroupSpec& spec) {
    recorder.joins(spec.name, to_string(spec.purpose), spec.ranks);
    return make_recording_backend(spec.name, recorder, factory(spec));
  };
  world.target_.recorder = &recorder;
  return world;
}

World World::with_recorded_groups(device::Recorder& recorder) const {
  World world = *this;
  for (Group* group : list_step_groups(world.groups_)) *group = observed(*group, recorder);
  world.factory_ = [factory = factory_, &recorder](const GroupSpec& spec) {
    recorder.joins(spec.name, to_string(spec.purpose), spec.ranks);
    return make_observing_backend(spec.name, recorder, factory(spec));
  };
  return world;
}

GroupFactory share_communicators(GroupFactory factory) {
  using Made = std::map<std::pair<Purpose, std::vector<int>>, std::shared_ptr<GroupBackend>>;
  return [factory = std::move(factory), made = std::make_shared<Made>()](const GroupSpec& spec) {
    std::shared_ptr<GroupBackend>& backend = (*made)[{spec.purpose, spec.ranks}];
    if (!backend) backend = factory(spec);
    return backend;
  };
}

World make_world(int rank, const topology::RankGrid& grid, const GroupFactory& factory, c10::Device device,
                 EndRun end_run) {
  return World(rank, grid, factory, device, std::move(end_run));
}

World make_meta_world(int rank, const topology::RankGrid& grid, c10::Device device, device::Recorder* recorder,
                      int capability) {
  const auto mirror = [recorder](const GroupSpec& spec) {
    if (recorder != nullptr) recorder->joins(spec.name, to_string(spec.purpose), spec.ranks);
    return make_mirror_backend(spec.name, static_cast<int>(spec.ranks.size()), recorder);
  };
  World world(rank, grid, mirror, device);
  world.target_.recorder = recorder;
  world.target_.meta = true;
  world.target_.meta_capability = capability;
  return world;
}

GroupFactory count_traffic(GroupFactory factory, std::shared_ptr<Traffic> traffic) {
  return [factory = std::move(factory), traffic = std::move(traffic)](const GroupSpec& spec) {
    return make_counting_backend(spec.name, traffic, factory ? factory(spec) : nullptr);
  };
}

RankFormatter rank_formatter(const topology::RankGrid& grid) {
  return [grid](int rank) { return format_rank(rank) + " (" + grid.format_coordinates(rank) + ")"; };
}

}  // namespace metroplex::comm
