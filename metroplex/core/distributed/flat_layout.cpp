#include "distributed/flat_layout.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace metroplex::distributed {

FlatLayout::FlatLayout(std::vector<nn::Param*> params, const FlatLayoutOptions& options)
    : params_(std::move(params)),
      num_shards_(options.num_shards),
      index_(options.index),
      bucket_index_(params_.size()),
      offset_in_bucket_(params_.size()) {
  MPX_ASSERT(options.sharded || options.num_shards == 1, "a flat layout without sharding has one part, not ",
             options.num_shards);
  std::vector<size_t> units = options.units;
  if (units.empty()) units.push_back(params_.size());
  size_t end = params_.size();
  MPX_ASSERT(std::accumulate(units.begin(), units.end(), size_t{0}) == end,
             "the units of a flat layout do not add up to its ", end, " parameters");
  for (size_t u = units.size(); u-- > 0;) {  // the flat range runs from the last parameter to the first
    add_unit(end - units[u], units[u], options);
    end -= units[u];
  }
  for (FlatBucket& bucket : buckets_) {
    bucket.own_begin = own_numel_;
    bucket.own_size = (bucket.end - bucket.begin) / num_shards_;
    own_numel_ += bucket.own_size;
  }
  find_own_ranges();
}

void FlatLayout::add_unit(size_t first, size_t count, const FlatLayoutOptions& options) {
  if (count == 0) return;
  std::vector<plan::BucketParam> bucket_params;
  for (size_t i = first; i < first + count; ++i)
    bucket_params.push_back({params_[i]->numel(), !params_[i]->placement.shared.empty()});
  plan::BucketOptions buckets;
  buckets.bucket_size = options.bucket_size;
  if (options.sharded) buckets = plan::distributed_optimizer_buckets(options.bucket_size, options.num_shards);
  const plan::BucketPlan plan = plan::plan_buckets(bucket_params, buckets);
  const size_t before = buckets_.size();
  for (const plan::Bucket& bucket : plan.buckets) {
    FlatBucket flat{numel_ + bucket.begin, numel_ + bucket.end, {}, 0, 0};
    for (const int param : bucket.params) flat.params.push_back(first + static_cast<size_t>(param));
    buckets_.push_back(std::move(flat));
  }
  for (size_t i = 0; i < count; ++i) {
    bucket_index_[first + i] = before + static_cast<size_t>(plan.slots[i].bucket);
    offset_in_bucket_[first + i] =
        plan.slots[i].begin - plan.buckets[static_cast<size_t>(plan.slots[i].bucket)].begin;
  }
  numel_ += plan.num_elements;
}

void FlatLayout::find_own_ranges() {
  for (size_t i = 0; i < params_.size(); ++i) {
    const FlatBucket& bucket = buckets_[bucket_index_[i]];
    const int64_t own_begin = index_ * bucket.own_size, own_end = own_begin + bucket.own_size;
    const int64_t begin = std::max(offset_in_bucket_[i], own_begin),
                  end = std::min(offset_in_bucket_[i] + params_[i]->numel(), own_end);
    if (begin >= end) continue;
    own_ranges_.push_back(
        {params_[i], begin - offset_in_bucket_[i], end - offset_in_bucket_[i], bucket.own_begin + begin - own_begin});
  }
}

at::Tensor FlatLayout::bucket(const at::Tensor& whole, size_t bucket) const {
  return whole.narrow(0, buckets_[bucket].begin, buckets_[bucket].end - buckets_[bucket].begin);
}

at::Tensor FlatLayout::bucket_own_shard(const at::Tensor& bucket_data, size_t bucket) const {
  return bucket_data.narrow(0, index_ * buckets_[bucket].own_size, buckets_[bucket].own_size);
}

at::Tensor FlatLayout::own_shard(const at::Tensor& own_data, size_t bucket) const {
  return own_data.narrow(0, buckets_[bucket].own_begin, buckets_[bucket].own_size);
}

at::Tensor FlatLayout::param_view(const at::Tensor& bucket_data, size_t param) const {
  return bucket_data.narrow(0, offset_in_bucket_[param], params_[param]->numel()).view(params_[param]->local_shape);
}

}  // namespace metroplex::distributed
