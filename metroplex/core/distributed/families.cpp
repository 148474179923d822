#include "distributed/families.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"
#include "nn/rounded_weight.h"
#include "plan/buckets.h"

namespace metroplex::distributed {
namespace {

using topology::Axis;
using topology::Grid;

// Splits the group into `num_instances` equal ranges. Each range shares state; replicas are the ranks at the same
// index in all ranges.
DataParallel split_instances(const comm::World& world, const comm::Group& group, int64_t num_instances) {
  const comm::Groups& groups = world.groups();
  if (group.ranks() == groups.dp_cp.ranks()) return {groups.intra_dp_cp, groups.inter_dp_cp};
  const auto size = static_cast<int64_t>(group.size());
  MPX_ASSERT(size % num_instances == 0, size, " ranks hold the same experts, in ", num_instances,
             " runs: the grid refuses that");
  if (num_instances == 1) return {group, comm::Group()};
  const int64_t instance_size = size / num_instances, at = group.index();
  std::vector<int> own, peers;
  for (int64_t i = 0; i < size; ++i) {
    const int rank = group.ranks()[static_cast<size_t>(i)];
    if (i / instance_size == at / instance_size) own.push_back(rank);
    if (i % instance_size == at % instance_size) peers.push_back(rank);
  }
  return {world.make_group({"intra-edp", comm::Purpose::gradients, own}),
          world.make_group({"inter-edp", comm::Purpose::gradients, peers})};
}

DataParallel make_data_parallel(const comm::World& world, Grid grid, const FamilyOptions& options) {
  const comm::Groups& groups = world.groups();
  if (!options.sharding.any()) return {comm::Group(), grid == Grid::dense ? groups.dp_cp : groups.edp};
  if (grid == Grid::dense) return {groups.intra_dp_cp, groups.inter_dp_cp};
  return split_instances(world, groups.edp, options.parallel->num_distributed_optimizer_instances);
}

comm::Group make_model_parallel(const comm::World& world, Grid grid) {
  const comm::Group& dense = world.groups().model_parallel;
  if (grid == Grid::dense) return dense;
  const topology::Ranks ranks = world.grid().group_ranks(world.rank(), {Axis::etp, Axis::ep, Axis::pp});
  return ranks == dense.ranks() ? dense : world.make_group({"etp-ep-pp", comm::Purpose::gradients, ranks});
}

// Returns `keys` and the family keys of all stages in sorted order. Collective.
std::vector<FamilyKey> find_keys(const comm::Group& stages, const std::vector<nn::Param*>& params,
                                 std::vector<FamilyKey> keys) {
  std::ostringstream mine;
  for (const nn::Param* param : params) {
    const FamilyKey key = family_key(*param);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    keys.push_back(key);
    mine << static_cast<int>(key.grid) << ' ' << static_cast<int>(key.dtype) << ' ' << key.frozen << ' '
         << key.as_codes << '\n';
  }
  for (const std::string& text : comm::all_gather_strings(mine.str(), stages)) {
    std::istringstream lines(text);
    int grid = 0, dtype = 0;
    bool frozen = false, as_codes = false;
    while (lines >> grid >> dtype >> frozen >> as_codes) {
      const FamilyKey key{static_cast<Grid>(grid), static_cast<at::ScalarType>(dtype), frozen, as_codes};
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  std::sort(keys.begin(), keys.end(), [](const FamilyKey& a, const FamilyKey& b) {
    return std::tuple(a.grid, a.dtype, a.frozen, a.as_codes) < std::tuple(b.grid, b.dtype, b.frozen, b.as_codes);
  });
  return keys;
}

// Returns the number of the family's parameters in each unit.
std::vector<size_t> count_unit_params(const ParamFamily& family, const std::vector<nn::Param*>& params,
                                      const std::vector<size_t>& units) {
  std::vector<size_t> own;
  size_t next = 0;
  for (const size_t unit : units) {
    const auto begin = params.begin() + static_cast<std::ptrdiff_t>(next);
    own.push_back(
        static_cast<size_t>(std::count_if(begin, begin + static_cast<std::ptrdiff_t>(unit),
                                          [&](const nn::Param* param) { return family_key(*param) == family.key; })));
    next += unit;
  }
  return own;
}

std::shared_ptr<const FlatLayout> make_layout(const ParamFamily& family, const config::Sharding& sharding,
                                              const FamilyOptions& options, std::vector<size_t> units) {
  FlatLayoutOptions layout;
  layout.bucket_size = plan::gradient_bucket_size(*options.parallel, sharding, family.data_parallel.size());
  layout.sharded = sharding.any();
  layout.num_shards = family.data_parallel.shard.size();
  layout.index = family.data_parallel.shard.index();
  if (sharding.gathers_units()) layout.units = std::move(units);
  return std::make_shared<const FlatLayout>(family.params, layout);
}

// A shard group of one rank needs no gathers and reductions, so it is not sharded.
config::Sharding family_sharding(const ParamFamily& family, const FamilyOptions& options) {
  return family.data_parallel.shard.size() == 1 ? config::Sharding() : options.sharding;
}

void make_buffers(ParamFamily& family, const FamilyOptions& options, std::vector<size_t> units,
                  const device::Target& target) {
  const config::Parallel& parallel = *options.parallel;
  const config::Sharding sharding = family_sharding(family, options);
  const auto layout = make_layout(family, sharding, options, std::move(units));
  ParamBufferOptions values;
  values.sharding = sharding;
  values.overlap = parallel.overlap_param_gather;
  values.align = parallel.align_param_gather;
  values.as_codes = family.key.as_codes;
  values.tensor = at::TensorOptions().dtype(family.key.dtype).device(options.device);
  family.values = std::make_unique<ParamBuffer>(layout, family.data_parallel.shard, values);
  if (family.key.frozen) {
    family.slices = own_shards(*family.values);
    return;
  }
  GradBufferOptions gradients;
  const bool as_params = family.key.dtype == at::kDouble || options.gradients_as_params;
  gradients.dtype = as_params ? family.key.dtype : at::kFloat;
  gradients.device = options.device;
  gradients.overlap = parallel.overlap_grad_reduce;
  gradients.transient_buckets = sharding.transient_gradients();
  const bool half = gradients.dtype == at::kHalf || gradients.dtype == at::kBFloat16;
  gradients.fp32_sums =
      parallel.reduce_scatter_with_fp32_accumulation && half && family.data_parallel.shard.size() > 1;
  gradients.target = target;
  family.gradients = std::make_unique<GradBuffer>(layout, family.data_parallel, gradients);
  family.slices = own_shards(*family.values, *family.gradients);
}

template <class Add>
int64_t sum_families(const std::vector<ParamFamily>& families, const Add& add) {
  return std::accumulate(families.begin(), families.end(), int64_t{0},
                         [&](int64_t sum, const ParamFamily& family) { return sum + add(family); });
}

}  // namespace

FamilyKey family_key(const nn::Param& param) {
  const bool as_codes = !param.frozen && param.rounded && param.rounded->can_gather_codes;
  return {param.placement.grid, param.scalar_type(), param.frozen, as_codes};
}

ParamFamilies::ParamFamilies(const comm::World& world, const std::vector<nn::Param*>& params,
                             const FamilyOptions& options)
    : dense_(make_data_parallel(world, Grid::dense, options)),
      expert_(make_data_parallel(world, Grid::expert, options)) {
  for (nn::Param* param : params) param->dtype = param->scalar_type();
  for (const FamilyKey& key : find_keys(world.groups().stages, params, options.other_stages)) {
    ParamFamily& family = families_.emplace_back();
    family.key = key;
    std::copy_if(params.begin(), params.end(), std::back_inserter(family.params),
                 [&](const nn::Param* param) { return family_key(*param) == key; });
    family.data_parallel = data_parallel(key.grid);
    family.model_parallel = make_model_parallel(world, key.grid);
  }
  for (ParamFamily& family : families_) {
    if (options.forward_only) {
      for (nn::Param* param : family.params) {
        family.slices.push_back({param, 0, param->numel(), param->data.view(-1), {}});
      }
      continue;
    }
    make_buffers(family, options, count_unit_params(family, params, options.units), world.target());
  }
}

const ParamFamily& ParamFamilies::of(const nn::Param& param) const {
  const FamilyKey key = family_key(param);
  const auto found =
      std::find_if(families_.begin(), families_.end(), [&](const ParamFamily& family) { return family.key == key; });
  MPX_ASSERT(found != families_.end(), param.name, " belongs to no family");
  return *found;
}

std::vector<Shard> ParamFamilies::slices() const {
  std::vector<Shard> all;
  for (const ParamFamily& family : families_) all.insert(all.end(), family.slices.begin(), family.slices.end());
  return all;
}

void ParamFamilies::begin_step(int64_t num_microbatches) {
  for (const ParamFamily& family : families_) {
    if (family.gradients) family.gradients->begin_step(num_microbatches);
  }
}

void ParamFamilies::finish_gradients() {
  for (const ParamFamily& family : families_) {
    if (family.gradients) family.gradients->finish();
  }
}

void ParamFamilies::updated() {
  for (const ParamFamily& family : families_) {
    if (family.gradients) family.values->updated();
  }
}

void ParamFamilies::loaded() {
  for (const ParamFamily& family : families_) {
    if (family.values) family.values->updated();
    for (const nn::Param* param : family.params)
      if (param->rounded) param->rounded->is_stale = true;
  }
}

void ParamFamilies::finish_gathers() {
  for (const ParamFamily& family : families_) {
    if (family.values) family.values->finish_gathers();
  }
}

std::unique_ptr<nn::StageObserver> ParamFamilies::make_gather(
    const std::vector<std::vector<nn::Param*>>& blocks) const {
  std::vector<std::vector<ParamBucket>> gathered;
  bool any = false;
  for (const std::vector<nn::Param*>& params : blocks) {
    std::vector<ParamBucket>& mine = gathered.emplace_back();
    for (const nn::Param* param : params) {
      if (param->stored) continue;
      const ParamFamily& family = of(*param);
      if (!family.values || !family.values->storage().defined()) continue;
      const auto at = std::find(family.params.begin(), family.params.end(), param) - family.params.begin();
      const ParamBucket bucket{family.values.get(), family.values->layout().bucket_index(static_cast<size_t>(at))};
      if (std::find(mine.begin(), mine.end(), bucket) == mine.end()) mine.push_back(bucket);
      any = true;
    }
  }
  return any ? std::make_unique<BlockGather>(std::move(gathered)) : nullptr;
}

int64_t ParamFamilies::values_bytes() const {
  return sum_families(families_, [](const ParamFamily& family) {
    const at::Tensor& storage = family.values->storage();
    if (storage.defined()) return static_cast<int64_t>(storage.nbytes()) + family.values->codes_bytes();
    int64_t bytes = 0;
    for (const nn::Param* param : family.params) bytes += static_cast<int64_t>(param->data.nbytes());
    return bytes;
  });
}

int64_t ParamFamilies::gradients_bytes() const {
  return sum_families(families_, [](const ParamFamily& family) {
    return family.gradients ? static_cast<int64_t>(family.gradients->storage().nbytes()) : 0;
  });
}

int64_t ParamFamilies::gathered_bytes() const {
  return sum_families(families_, [](const ParamFamily& family) { return family.values->gathered_bytes(); });
}

int64_t ParamFamilies::transient_bytes() const {
  return sum_families(families_, [](const ParamFamily& family) {
    return family.gradients ? family.gradients->transient_bytes() : 0;
  });
}

}  // namespace metroplex::distributed
