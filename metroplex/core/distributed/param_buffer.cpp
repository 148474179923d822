#include "distributed/param_buffer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "nn/param_init.h"

namespace metroplex::distributed {

ParamBuffer::ParamBuffer(std::shared_ptr<const FlatLayout> layout, comm::Group shard, ParamBufferOptions options)
    : layout_(std::move(layout)),
      shard_(std::move(shard)),
      options_(std::move(options)),
      buckets_(layout_->buckets().size()) {
  if (options_.sharding.any()) {
    storage_ = at::zeros({options_.sharding.parameters ? layout_->own_numel() : layout_->numel()}, options_.tensor);
  }
  adopt_values();
}

ParamBuffer::~ParamBuffer() = default;

void ParamBuffer::adopt_values() {
  const auto& params = layout_->params();
  auto own_range = layout_->own_pieces().begin();
  for (size_t i = 0; i < params.size(); ++i) {
    nn::Param& param = *params[i];
    if (!param.data.defined()) nn::materialize(param, options_.tensor);
    const size_t b = layout_->bucket_index(i);
    at::Tensor view = param.data;
    if (options_.sharding.gathers_updates()) {
      view = layout_->param_view(layout_->bucket(storage_, b), i);
      view.copy_(param.data);
      param.data = view;
    }
    if (own_range != layout_->own_pieces().end() && own_range->param == &param) {
      at::Tensor own = view.view(-1).narrow(0, own_range->begin, own_range->size());
      if (options_.sharding.parameters) {
        const int64_t at = own_range->own - layout_->buckets()[b].own_begin;
        const at::Tensor storage = layout_->own_shard(storage_, b).narrow(0, at, own_range->size());
        storage.copy_(own);
        own = storage;
      }
      own_values_.push_back(own);
      ++own_range;
    }
    if (options_.sharding.parameters) param.data = at::Tensor();
  }
}

void ParamBuffer::start(size_t b) {
  Bucket& bucket = buckets_[b];
  if (bucket.in_flight) return;
  bucket.in_flight = true;
  if (options_.sharding.gathers_units()) {
    const FlatBucket& range = layout_->buckets()[b];
    bucket.data = at::empty({range.end - range.begin}, options_.tensor);
    const at::Tensor own = layout_->own_shard(storage_, b);
    if (shard_.size() == 1) {
      bucket.data.copy_(own);
    } else {
      bucket.handle = comm::all_gather_into_async(bucket.data, own, shard_);
    }
    return;
  }
  const at::Tensor whole = layout_->bucket(storage_, b);
  if (shard_.size() > 1)
    bucket.handle = comm::all_gather_into_async(whole, layout_->bucket_own_shard(whole, b), shard_);
}

void ParamBuffer::finish(size_t b) {
  Bucket& bucket = buckets_[b];
  bucket.handle.wait();
  bucket.in_flight = bucket.stale = false;
  if (!options_.sharding.gathers_units()) return;
  for (const size_t i : layout_->buckets()[b].params)
    layout_->params()[i]->data = layout_->param_view(bucket.data, i);
}

void ParamBuffer::updated() {
  if (!options_.sharding.gathers_updates()) return;
  for (Bucket& bucket : buckets_) {
    bucket.handle.wait();  // finishes a gather of stale values; the bucket is gathered again
    bucket.in_flight = false;
    bucket.stale = true;
  }
  // The last bucket holds the first parameters, so it is needed first.
  for (size_t b = buckets_.size(); b-- > 0;) {
    start(b);
    if (options_.overlap && !options_.align) return;
  }
  if (!options_.overlap) finish_gathers();
}

void ParamBuffer::acquire(size_t b) {
  Bucket& bucket = buckets_[b];
  if (options_.sharding.gathers_units()) {
    if (bucket.users++ > 0) return;
    start(b);
    finish(b);
    return;
  }
  if (!bucket.stale) return;
  start(b);
  finish(b);
  for (size_t next = b; next-- > 0;) {  // prefetch the bucket that is needed next
    if (!buckets_[next].stale) continue;
    start(next);
    return;
  }
}

void ParamBuffer::prefetch(size_t b) {
  if (options_.sharding.gathers_units() && buckets_[b].users == 0) start(b);
}

void ParamBuffer::release(size_t b) {
  if (!options_.sharding.gathers_units()) return;
  Bucket& bucket = buckets_[b];
  MPX_ASSERT(bucket.users > 0, "bucket ", b, " is released more often than it was acquired");
  if (--bucket.users > 0) return;
  bucket.data = at::Tensor();
  for (const size_t i : layout_->buckets()[b].params) layout_->params()[i]->data = at::Tensor();
}

void ParamBuffer::finish_gathers() {
  for (size_t b = buckets_.size(); b-- > 0;) {
    if (buckets_[b].stale) {
      start(b);
      finish(b);
    } else if (buckets_[b].in_flight) {
      buckets_[b].handle.wait();
    }
  }
}

void BlockGather::before(const nn::RegionEvent& event) {
  if (!event.enters_block) return;
  for (const ParamBucket& of : buckets_[static_cast<size_t>(event.block)]) of.buffer->acquire(of.bucket);
  if (event.next < 0) return;
  for (const ParamBucket& of : buckets_[static_cast<size_t>(event.next)]) of.buffer->prefetch(of.bucket);
}

void BlockGather::after(const nn::RegionEvent& event) {
  if (!event.leaves_block) return;
  for (const ParamBucket& of : buckets_[static_cast<size_t>(event.block)]) of.buffer->release(of.bucket);
}

}  // namespace metroplex::distributed
