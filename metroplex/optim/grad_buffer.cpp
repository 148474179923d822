#include "optim/grad_buffer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "plan/buckets.h"

namespace metroplex::optim {

GradBuffer::GradBuffer(std::vector<nn::Param*> params, comm::Group dp, GradBufferOptions options)
    : params_(std::move(params)),
      dp_(std::move(dp)),
      options_(options),
      bucket_of_(params_.size()),
      uses_left_(params_.size()) {
  std::vector<plan::BucketParam> wanted;
  for (const nn::Param* param : params_) wanted.push_back({param->data.numel(), false});
  plan::BucketOptions layout_options;
  if (options_.overlap) {
    layout_options.bucket_size =
        options_.bucket_size > 0 ? options_.bucket_size : plan::default_bucket_size(dp_.size());
  }
  const plan::BucketPlan layout = plan::plan_buckets(wanted, layout_options);
  flat_ = at::zeros({layout.num_elements}, options_.dtype);
  for (const plan::Bucket& bucket : layout.buckets) {
    buckets_.push_back({flat_.narrow(0, bucket.begin, bucket.end - bucket.begin),
                        static_cast<int64_t>(bucket.params.size()),
                        0,
                        false,
                        {}});
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    nn::Param& param = *params_[i];
    bucket_of_[i] = static_cast<size_t>(layout.slots[i].bucket);
    param.main_grad = flat_.narrow(0, layout.slots[i].begin, param.data.numel()).view(param.data.sizes());
    param.on_use = [this, i] { used(i); };
  }
}

GradBuffer::~GradBuffer() {
  for (nn::Param* param : params_) param->on_use = nullptr;
}

void GradBuffer::begin_step(int64_t num_microbatches) {
  flat_.zero_();
  for (size_t i = 0; i < params_.size(); ++i) uses_left_[i] = params_[i]->uses_per_microbatch * num_microbatches;
  for (Bucket& bucket : buckets_) {
    bucket.waiting = bucket.params;
    bucket.reduced = false;
  }
  armed_ = true;
}

void GradBuffer::used(size_t param) {
  if (!armed_) return;  // a backward outside a step (tests, probes)
  MPX_ASSERT(uses_left_[param] > 0, "parameter ", params_[param]->name, " was used more often than it declared");
  if (--uses_left_[param] > 0) return;
  Bucket& bucket = buckets_[bucket_of_[param]];
  if (--bucket.waiting == 0 && options_.overlap) reduce(bucket);
}

void GradBuffer::reduce(Bucket& bucket) {
  bucket.reduced = true;
  if (dp_.size() == 1) return;
  if (options_.average) bucket.grads.mul_(1.0 / dp_.size());
  bucket.handle = comm::all_reduce_async(bucket.grads, dp_);
}

void GradBuffer::finish() {
  for (size_t i = 0; i < params_.size(); ++i) {
    MPX_ASSERT(uses_left_[i] == 0, "parameter ", params_[i]->name, " still waits for ", uses_left_[i], " gradients");
  }
  armed_ = false;
  for (Bucket& bucket : buckets_) {
    if (!bucket.reduced) reduce(bucket);
  }
  for (Bucket& bucket : buckets_) bucket.handle.wait();
}

}  // namespace metroplex::optim
