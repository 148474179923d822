#include "plan/buckets.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/round_up.h"
#include "config/derived.h"

namespace metroplex::plan {
namespace {

class BucketWriter {
 public:
  BucketWriter(const std::vector<BucketParam>& params, const BucketOptions& options)
      : params_(params), options_(options) {
    plan_.slots.resize(params.size());
  }

  BucketPlan write() {
    for (size_t i = params_.size(); i-- > 0;) add(i);
    if (!open_.empty()) close(at_);
    plan_.num_elements = begin_;
    return std::move(plan_);
  }

 private:
  void add(size_t index) {
    const BucketParam& param = params_[index];
    MPX_ASSERT(param.num_elements >= 0, "parameter ", index, " has ", param.num_elements, " elements");
    const bool alone = options_.shared_embedding_alone && param.shared_embedding;
    int64_t begin = base::round_up(at_, options_.param_start_multiple);
    if (alone && !open_.empty()) {
      close(begin);
      begin = begin_;
    }
    plan_.slots[index] = {begin, begin + param.num_elements, static_cast<int>(plan_.buckets.size())};
    open_.push_back(static_cast<int>(index));
    at_ = begin + param.num_elements;
    const bool full = options_.bucket_size > 0 && at_ - begin_ >= options_.bucket_size;
    if (alone || full) close(at_);
  }

  void close(int64_t end) {
    const int64_t padded = base::round_up(end, options_.bucket_end_multiple);
    plan_.buckets.push_back({begin_, padded, end - begin_, std::move(open_)});
    open_.clear();
    begin_ = at_ = padded;
  }

  const std::vector<BucketParam>& params_;
  const BucketOptions& options_;
  BucketPlan plan_;
  std::vector<int> open_;
  int64_t begin_ = 0;  // start of the open bucket
  int64_t at_ = 0;     // end of the last parameter
};

}  // namespace

BucketOptions distributed_optimizer_buckets(int64_t bucket_size, int64_t dp) {
  MPX_ASSERT(dp > 0, "data-parallel size ", dp);
  BucketOptions options;
  options.bucket_size = bucket_size;
  options.param_start_multiple = 64;
  options.bucket_end_multiple = std::lcm(dp, int64_t{128});
  options.shared_embedding_alone = true;
  return options;
}

BucketPlan plan_buckets(const std::vector<BucketParam>& params, const BucketOptions& options) {
  MPX_ASSERT(options.param_start_multiple > 0 && options.bucket_end_multiple > 0, "multiples ",
             options.param_start_multiple, " and ", options.bucket_end_multiple);
  return BucketWriter(params, options).write();
}

int64_t gradient_bucket_size(const config::Parallel& parallel, const config::Sharding& sharding, int64_t dp) {
  const bool overlaps = parallel.overlap_grad_reduce || sharding.transient_gradients();
  if (sharding.gathers_units() || !overlaps) return 0;
  return parallel.ddp_bucket_size > 0 ? parallel.ddp_bucket_size : config::default_bucket_size(dp);
}

}  // namespace metroplex::plan
