#include "comm/world.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "comm/backends/backend.h"
#include "comm/backends/mirror.h"
#include "comm/backends/recording.h"
#include "comm/backends/counting.h"
#include "topology/megatron_groups.h"

namespace metroplex::comm {

namespace {

Group make_one(int rank, const std::string& name, const std::vector<int>& ranks, const GroupFactory& factory) {
  const auto index = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  return Group(name, ranks, index, ranks.size() > 1 ? factory(name, ranks) : nullptr);
}

struct Span {
  topology::AxisSet axes;
  Group Groups::*group;
};
constexpr Span kSpans[] = {{topology::Axis::tp, &Groups::tp},
                           {topology::Axis::cp, &Groups::cp},
                           {topology::Axis::dp, &Groups::dp},
                           {topology::Axis::pp, &Groups::pp},
                           {{topology::Axis::dp, topology::Axis::cp}, &Groups::dp_cp},
                           {{topology::Axis::tp, topology::Axis::pp}, &Groups::model_parallel},
                           {topology::Axis::etp, &Groups::etp},
                           {topology::Axis::ep, &Groups::ep},
                           {topology::Axis::edp, &Groups::edp}};

}  // namespace

const Group& Groups::over(topology::AxisSet axes) const {
  for (const Span& span : kSpans) {
    if (span.axes == axes) return this->*span.group;
  }
  MPX_ASSERT(false, "no group spans '", topology::to_string(axes), "'");
}

World::World(int rank, topology::RankGrid grid, GroupFactory factory, c10::Device device)
    : rank_(rank),
      grid_(std::move(grid)),
      factory_(std::move(factory)),
      groups_(make_groups(rank, grid_, factory_)),
      target_{device} {}

Group World::make_group(const std::string& name, const std::vector<int>& ranks) const {
  return make_one(rank_, name, ranks, factory_);
}

Groups make_groups(int rank, const topology::RankGrid& grid, const GroupFactory& factory) {
  using topology::Axis;
  const auto make = [&](const std::string& name, const std::vector<int>& ranks) {
    return make_one(rank, name, ranks, factory);
  };
  const auto family = [&](const std::string& name, topology::AxisSet axes) {
    return make(name, grid.group_of(rank, axes));
  };
  Groups groups;
  // First, so that its communicator bears this name in every layout: ranks that were given different layouts by hand
  // meet in it, and find out. Groups of the same members share it.
  std::vector<int> everyone(static_cast<size_t>(grid.world_size()));
  for (size_t i = 0; i < everyone.size(); ++i) everyone[i] = static_cast<int>(i);
  groups.world = make("world", everyone);
  groups.tp = family("tp", Axis::tp);
  groups.cp = family("cp", Axis::cp);
  groups.dp = family("dp", Axis::dp);
  groups.pp = family("pp", Axis::pp);
  groups.dp_cp = family("dp-cp", {Axis::dp, Axis::cp});
  groups.model_parallel = family("tp-pp", {Axis::tp, Axis::pp});
  const auto instances = static_cast<size_t>(grid.num_distributed_optimizer_instances());
  groups.intra_dp_cp = groups.dp_cp;
  groups.inter_dp_cp = make("inter-dp-cp", {rank});
  if (instances > 1) {
    const std::vector<int>& all = groups.dp_cp.ranks();
    const size_t run = all.size() / instances, index = static_cast<size_t>(groups.dp_cp.index());
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index / run * run);
    groups.intra_dp_cp = make("intra-dp-cp", {begin, begin + static_cast<std::ptrdiff_t>(run)});
    std::vector<int> peers;
    for (size_t i = index % run; i < all.size(); i += run) peers.push_back(all[i]);
    groups.inter_dp_cp = make("inter-dp-cp", peers);
  }
  const auto chosen = [&](const std::string& name, const topology::Ranks& members) {
    const bool among = std::find(members.begin(), members.end(), rank) != members.end();
    return make(name, among ? members : topology::Ranks{rank});
  };
  groups.embedding = chosen("embd", topology::embedding_ranks(groups.pp.ranks()));
  groups.position_embedding = chosen("pos_embd", topology::position_embedding_ranks(groups.pp.ranks()));
  groups.batch = family("batch", Axis::tp);
  groups.etp = family("etp", Axis::etp);
  groups.ep = family("ep", Axis::ep);
  groups.edp = family("edp", Axis::edp);
  return groups;
}

World World::recorded(cuda::Recorder& recorder) const {
  World world = *this;
  Groups& g = world.groups_;
  for (Group* group : {&g.world, &g.tp, &g.cp, &g.dp, &g.pp, &g.dp_cp, &g.model_parallel, &g.intra_dp_cp,
                       &g.inter_dp_cp, &g.embedding, &g.position_embedding, &g.batch, &g.etp, &g.ep, &g.edp})
    *group = group->recorded(recorder);
  world.factory_ = [factory = factory_, &recorder](const std::string& name, const std::vector<int>& ranks) {
    recorder.joins(name, ranks);
    return make_recording_backend(name, recorder, factory(name, ranks));
  };
  world.target_.recorder = &recorder;
  return world;
}

GroupFactory shared(GroupFactory factory) {
  using Made = std::map<std::vector<int>, std::shared_ptr<GroupBackend>>;
  return [factory = std::move(factory), made = std::make_shared<Made>()](const std::string& name,
                                                                         const std::vector<int>& ranks) {
    if (name == "pp" || name == "batch") return factory(name, ranks);
    std::shared_ptr<GroupBackend>& backend = (*made)[ranks];
    if (!backend) backend = factory(name, ranks);
    return backend;
  };
}

World make_world(int rank, const topology::RankGrid& grid, const GroupFactory& factory, c10::Device device) {
  return World(rank, grid, factory, device);
}

World make_meta_world(int rank, const topology::RankGrid& grid, c10::Device device, cuda::Recorder* recorder) {
  const auto mirror = [recorder](const std::string& name, const std::vector<int>& ranks) {
    return make_mirror_backend(name, static_cast<int>(ranks.size()), recorder);
  };
  World world(rank, grid, mirror, device);
  world.target_.recorder = recorder;
  world.target_.meta = true;
  return world;
}

GroupFactory counted(GroupFactory factory, std::shared_ptr<Traffic> traffic) {
  return [factory = std::move(factory), traffic = std::move(traffic)](const std::string& name,
                                                                      const std::vector<int>& ranks) {
    return make_counting_backend(name, traffic, factory ? factory(name, ranks) : nullptr);
  };
}

DescribeRank describe_in(const topology::RankGrid& grid) {
  return [grid](int rank) { return describe_plainly(rank) + " (" + grid.describe(rank) + ")"; };
}

}  // namespace metroplex::comm
