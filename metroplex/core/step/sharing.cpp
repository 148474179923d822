#include "step/sharing.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::step {
namespace {

// A chunk that holds a parameter of some name, by pipeline rank (stage) and index in the model.
struct Holder {
  int64_t chunk_index = 0;
  int stage = 0;
};

// Returns each shared name with its holders in model order.
std::map<std::string, std::vector<Holder>> find_holders(const comm::Group& pp,
                                                        const std::vector<ChunkParams>& chunks) {
  std::string mine;
  for (const ChunkParams& chunk : chunks) {
    for (const nn::Param* param : chunk.params) {
      if (!param->placement.shared.empty())
        mine += base::concat(chunk.chunk_index, " ", param->placement.shared, "\n");
    }
  }
  std::map<std::string, std::vector<Holder>> holders;
  const std::vector<std::string> all = comm::all_gather_strings(mine, pp);
  for (size_t stage = 0; stage < all.size(); ++stage) {
    std::istringstream lines(all[stage]);
    Holder holder{0, static_cast<int>(stage)};
    for (std::string name; lines >> holder.chunk_index >> name;) holders[name].push_back(holder);
  }
  for (auto& [name, of_name] : holders) {
    std::stable_sort(of_name.begin(), of_name.end(),
                     [](const Holder& a, const Holder& b) { return a.chunk_index < b.chunk_index; });
  }
  return holders;
}

comm::Group make_shared_group(const comm::World& world, const std::string& name, const std::vector<Holder>& holders) {
  const std::vector<int>& pipeline = world.groups().pp.ranks();
  std::vector<int> ranks;
  for (size_t stage = 0; stage < pipeline.size(); ++stage) {
    const auto here = [&](const Holder& holder) { return holder.stage == static_cast<int>(stage); };
    if (std::any_of(holders.begin(), holders.end(), here)) ranks.push_back(pipeline[stage]);
  }
  return world.make_group({"shared " + name, comm::Purpose::gradients, ranks});
}

// Returns the shards of the holders; empty if other data-parallel ranks have them.
std::vector<const distributed::Shard*> find_shards(const SharedParam& shared,
                                                   const std::vector<distributed::Shard>& slices) {
  std::vector<const distributed::Shard*> found;
  for (const nn::Param* param : shared.holders) {
    for (const distributed::Shard& slice : slices) {
      if (slice.param == param) found.push_back(&slice);
    }
  }
  MPX_ASSERT(found.empty() || found.size() == shared.holders.size(), shared.name, ": holders of different slices");
  return found;
}

}  // namespace

std::vector<SharedParam> find_shared(const comm::World& world, const std::vector<ChunkParams>& chunks) {
  std::vector<SharedParam> all;
  for (const auto& [name, holders] : find_holders(world.groups().stages, chunks)) {
    SharedParam shared{name, {}, {}};
    for (const ChunkParams& chunk : chunks) {
      for (nn::Param* param : chunk.params) {
        if (param->placement.shared != name) continue;
        param->owner = shared.holders.empty() && holders.front().chunk_index == chunk.chunk_index;
        shared.holders.push_back(param);
      }
    }
    if (shared.holders.empty()) continue;
    shared.group = make_shared_group(world, name, holders);
    all.push_back(std::move(shared));
  }
  return all;
}

void sum_shared_gradients(const std::vector<SharedParam>& all, const std::vector<distributed::Shard>& slices) {
  for (const SharedParam& shared : all) {
    const std::vector<const distributed::Shard*> mine = find_shards(shared, slices);
    if (mine.empty()) continue;
    const at::Tensor& sum = mine.front()->gradient;
    for (size_t i = 1; i < mine.size(); ++i) sum.add_(mine[i]->gradient);
    comm::all_reduce(sum, shared.group);
    for (size_t i = 1; i < mine.size(); ++i) mine[i]->gradient.copy_(sum);
  }
}

void share_values(const std::vector<SharedParam>& all, const std::vector<distributed::Shard>& slices) {
  for (const SharedParam& shared : all) {
    const std::vector<const distributed::Shard*> mine = find_shards(shared, slices);
    if (mine.empty()) continue;
    const at::Tensor& values = mine.front()->values;
    if (!mine.front()->param->owner) values.zero_();
    comm::all_reduce(values, shared.group);
    for (size_t i = 1; i < mine.size(); ++i) mine[i]->values.copy_(values);
  }
}

}  // namespace metroplex::step
