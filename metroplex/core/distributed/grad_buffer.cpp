#include "distributed/grad_buffer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"

namespace metroplex::distributed {

static constexpr const char* kListener = "gradient buffer";

static plan::FillingBuckets filling_buckets(const FlatLayout& layout, bool overlap) {
  std::vector<std::vector<size_t>> params;
  for (const FlatBucket& bucket : layout.buckets()) params.push_back(bucket.params);
  std::vector<int64_t> uses;
  for (const nn::Param* param : layout.params()) uses.push_back(param->uses_per_microbatch);
  return {std::move(params), std::move(uses), overlap};
}

GradBuffer::GradBuffer(std::shared_ptr<const FlatLayout> layout, DataParallel dp, GradBufferOptions options)
    : layout_(std::move(layout)),
      dp_(std::move(dp)),
      options_(options),
      buckets_(layout_->buckets().size()),
      filling_(filling_buckets(*layout_, options_.overlap)),
      uses_left_(layout_->params().size()) {
  const bool transient = options_.transient_buckets;
  kept_ = at::zeros({transient ? layout_->own_numel() : layout_->numel()}, tensor_options());
  for (size_t b = 0; b < buckets_.size() && !transient; ++b) {
    buckets_[b].data = layout_->bucket(kept_, b);
    for (const size_t i : layout_->buckets()[b].params)
      layout_->params()[i]->main_grad = layout_->param_view(buckets_[b].data, i);
  }
  for (size_t i = 0; i < layout_->params().size(); ++i) {
    nn::Param& param = *layout_->params()[i];
    if (transient) {
      param.before_use.add(kListener, [this, i] {
        if (const auto bucket = filling_.open(i)) make_bucket(*bucket);
      });
    }
    param.on_use.add(kListener, [this, i] { used(i); });
  }
  size_t param = 0;
  for (const OwnPiece& piece : layout_->own_pieces()) {
    while (layout_->params()[param] != piece.param) ++param;
    const size_t b = layout_->bucket_of(param);
    own_gradients_.push_back(own_part(b).narrow(0, piece.own - layout_->buckets()[b].own_begin, piece.size()));
  }
}

GradBuffer::~GradBuffer() { stop_listening(); }

void GradBuffer::stop_listening() {
  for (nn::Param* param : layout_->params()) {
    param->before_use.remove(kListener);
    param->on_use.remove(kListener);
  }
}

void GradBuffer::detach_params() {
  stop_listening();
  for (nn::Param* param : layout_->params()) param->main_grad = at::zeros(param->local_shape, tensor_options());
}

at::Tensor GradBuffer::own_part(size_t b) const {
  return options_.transient_buckets ? layout_->own_part(kept_, b) : layout_->own_part_of_bucket(buckets_[b].data, b);
}

void GradBuffer::begin_step(int64_t num_microbatches) {
  if (options_.transient_buckets) {
    kept_.zero_();
  } else {
    for (nn::Param* param : layout_->params()) param->fresh = true;
  }
  filling_.begin(options_.transient_buckets ? 1 : num_microbatches);
  for (size_t i = 0; i < uses_left_.size(); ++i) {
    uses_left_[i] = layout_->params()[i]->uses_per_microbatch * num_microbatches;
  }
  for (Bucket& bucket : buckets_) bucket.reduced = false;
  armed_ = true;
}

void GradBuffer::make_bucket(size_t b) {
  const FlatBucket& bucket = layout_->buckets()[b];
  buckets_[b].data = at::zeros({bucket.end - bucket.begin}, tensor_options());
  for (const size_t i : bucket.params) layout_->params()[i]->main_grad = layout_->param_view(buckets_[b].data, i);
}

void GradBuffer::used(size_t param) {
  if (!armed_) return;  // a backward outside a step (tests, probes)
  MPX_ASSERT(uses_left_[param] > 0, "parameter ", layout_->params()[param]->name,
             " was used more often than it declared");
  --uses_left_[param];
  const std::optional<size_t> full = filling_.use(param);
  if (full && (options_.overlap || options_.transient_buckets)) reduce(*full);
}

void GradBuffer::reduce(size_t b) {
  Bucket& bucket = buckets_[b];
  for (const size_t i : layout_->buckets()[b].params) {
    const nn::Param& param = *layout_->params()[i];
    MPX_ASSERT(param.settled(), "the gradient of ", param.name, " is reduced before all of it has arrived");
  }
  if (options_.transient_buckets) {
    start_reduce(b);
    return;
  }
  for (const size_t i : layout_->buckets()[b].params) layout_->params()[i]->zero_fresh();
  bucket.reduced = true;
  if (dp_.shard.size() > 1) {
    bucket.handle =
        comm::reduce_scatter_into_async(layout_->own_part_of_bucket(bucket.data, b), bucket.data, dp_.shard);
  } else {
    bucket.handle = comm::all_reduce_async(bucket.data, dp_.replicas);
  }
}

// ZeRO-2 and ZeRO-3: detaches the bucket [bucket elements] from its parameters and starts its reduce-scatter, which
// overlaps backward. The next gradient of these parameters allocates a new bucket. finish_reduce() adds the result
// to this rank's shard [bucket elements / shard size] and frees the bucket. At most one reduction is in flight;
// without overlap this function waits for it.
void GradBuffer::start_reduce(size_t b) {
  finish_reduce();
  pending_.bucket = b;
  pending_.data = std::move(buckets_[b].data);
  for (const size_t i : layout_->buckets()[b].params) layout_->params()[i]->main_grad = at::Tensor();
  if (dp_.shard.size() > 1) {
    pending_.handle =
        comm::reduce_scatter_into_async(layout_->own_part_of_bucket(pending_.data, b), pending_.data, dp_.shard);
  }
  if (!filling_.leaving()) finish_reduce();
}

void GradBuffer::finish_reduce() {
  if (!pending_.data.defined()) return;
  pending_.handle.wait();
  layout_->own_part(kept_, pending_.bucket).add_(layout_->own_part_of_bucket(pending_.data, pending_.bucket));
  pending_.data = at::Tensor();
}

void GradBuffer::reduce_over_replicas() {
  if (dp_.replicas.size() == 1) return;
  std::vector<comm::Handle> handles;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    handles.push_back(comm::all_reduce_async(own_part(b), dp_.replicas));
  }
  for (comm::Handle& handle : handles) handle.wait();
}

void GradBuffer::finish() {
  for (size_t i = 0; i < uses_left_.size(); ++i) {
    MPX_ASSERT(uses_left_[i] == 0, "parameter ", layout_->params()[i]->name, " still waits for ", uses_left_[i],
               " gradients");
  }
  armed_ = false;
  if (options_.transient_buckets) {
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (!filling_.filling(b)) continue;
      filling_.leave(b);
      reduce(b);
    }
    finish_reduce();
    reduce_over_replicas();
    return;
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (!buckets_[b].reduced) reduce(b);
  }
  for (Bucket& bucket : buckets_) bucket.handle.wait();
  if (dp_.shard.size() > 1) reduce_over_replicas();
}

}  // namespace metroplex::distributed
