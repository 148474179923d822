#include "distributed/param_buffer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "nn/param_init.h"
#include "nn/rounded_weight.h"
#include "nn/wide.h"

namespace metroplex::distributed {

ParamBuffer::ParamBuffer(std::shared_ptr<const FlatLayout> layout, comm::Group shard, ParamBufferOptions options)
    : layout_(std::move(layout)),
      shard_(std::move(shard)),
      options_(std::move(options)),
      buckets_(layout_->buckets().size()) {
  if (options_.sharding.any()) {
    storage_ = at::zeros({holds_own_values() ? layout_->own_numel() : layout_->numel()}, options_.tensor);
  }
  if (gathers_codes()) adopt_codes();
  adopt_values();
}

ParamBuffer::~ParamBuffer() = default;

int64_t ParamBuffer::codes_bytes() const {
  if (!gathers_codes()) return 0;
  return static_cast<int64_t>(codes_.nbytes() + magnitudes_.nbytes() + decode_.nbytes());
}

// A parameter's own range in all buckets, or in the concatenated own shards.
at::Tensor ParamBuffer::own_view(const at::Tensor& storage, bool of_shards, size_t param,
                                 const OwnRange& range) const {
  const size_t b = layout_->bucket_index(param);
  if (of_shards)
    return layout_->own_shard(storage, b).narrow(0, range.own - layout_->buckets()[b].own_begin, range.size());
  return layout_->param_view(layout_->bucket(storage, b), param).view(-1).narrow(0, range.begin, range.size());
}

void ParamBuffer::adopt_values() {
  const auto& params = layout_->params();
  auto own_range = layout_->own_pieces().begin();
  for (size_t i = 0; i < params.size(); ++i) {
    nn::Param& param = *params[i];
    if (!param.data.defined()) nn::materialize(param, options_.tensor);
    const at::Tensor values = param.data;
    if (options_.sharding.any() && !holds_own_values()) {
      param.data = layout_->param_view(layout_->bucket(storage_, layout_->bucket_index(i)), i);
      param.data.copy_(values);
    }
    if (own_range != layout_->own_pieces().end() && own_range->param == &param) {
      at::Tensor own = param.data.view(-1).narrow(0, own_range->begin, own_range->size());
      if (holds_own_values()) own = own_view(storage_, true, i, *own_range).copy_(own);
      if (gathers_codes()) {
        nn::WeightShard& shard = *param.rounded->shard;
        shard.values = own;
        shard.codes = own_view(codes_, options_.sharding.parameters, i, *own_range);
        shard.begin = own_range->begin;
      }
      own_values_.push_back(own);
      ++own_range;
    }
    if (holds_own_values()) param.data = at::Tensor();
  }
}

// Replaces the parameters' rounded values by gathered codes. updated() must follow.
void ParamBuffer::adopt_codes() {
  const auto bytes = options_.tensor.dtype(at::kByte),
             wide = options_.tensor.dtype(nn::acc_type(options_.tensor.dtype().toScalarType()));
  codes_ = at::zeros({options_.sharding.parameters ? layout_->own_numel() : layout_->numel()}, bytes);
  const auto& params = layout_->params();
  std::vector<size_t> with_blocks;
  std::vector<int64_t> first(params.size());
  int64_t factors = 0;
  const auto place = [&](size_t i) {
    nn::RoundedWeight& rounded = *params[i]->rounded;
    rounded.shard = nn::make_shard(*params[i], at::empty({0}, options_.tensor), at::empty({0}, bytes));
    first[i] = factors;
    factors += rounded.rounding.count_factors(*rounded.shard);
  };
  for (size_t i = 0; i < params.size(); ++i)
    params[i]->rounded->rounding.has_blocks() ? with_blocks.push_back(i) : place(i);
  matrix_factors_ = factors;
  for (const size_t i : with_blocks) place(i);
  magnitudes_ = at::zeros({factors}, wide), decode_ = at::ones({factors}, wide);
  for (size_t i = 0; i < params.size(); ++i) adopt_factors(i, first[i]);
}

void ParamBuffer::adopt_factors(size_t i, int64_t first) {
  nn::RoundedWeight& rounded = *layout_->params()[i]->rounded;
  const int64_t count = rounded.rounding.count_factors(*rounded.shard);
  rounded.magnitudes = magnitudes_.narrow(0, first, count);
  rounded.column_codes = rounded.rounding.gathered_codes(*rounded.shard, {}, decode_.narrow(0, first, count));
  if (!options_.sharding.parameters) set_gathered(i, layout_->bucket(codes_, layout_->bucket_index(i)));
  if (rounded.rounding.has_blocks()) return;  // no block is sharded
  for (const comm::Group& group : rounded.rounding.shards(nn::Operand::weight)) {
    const auto same = [&](const comm::Group& other) { return other.ranks() == group.ranks(); };
    if (std::none_of(weight_shards_.begin(), weight_shards_.end(), same)) weight_shards_.push_back(group);
  }
}

// `bucket_data`: the parameter's bucket, or undefined after the bucket was freed.
void ParamBuffer::set_gathered(size_t i, const at::Tensor& bucket_data) const {
  nn::Param& param = *layout_->params()[i];
  at::Tensor view = bucket_data.defined() ? layout_->param_view(bucket_data, i) : at::Tensor();
  if (!gathers_codes()) {
    param.data = view;
    return;
  }
  if (view.defined()) view = view.view({-1, view.size(-1)}).view(at::kFloat8_e4m3fn);
  param.rounded->column_codes.codes = view;
}

// Every factor needs the largest magnitude of all its shards, except with delayed scales.
void ParamBuffer::encode_own() {
  const at::NoGradGuard no_grad;
  bool delays = true;
  for (const nn::Param* param : layout_->params()) {
    nn::RoundedWeight& rounded = *param->rounded;
    if (rounded.rounding.delays_scales()) continue;
    rounded.rounding.find_magnitudes(rounded.magnitudes, *rounded.shard);
    delays = false;
  }
  if (!delays) {
    comm::all_reduce(magnitudes_, shard_, comm::ReduceOp::max);
    const at::Tensor of_matrices = magnitudes_.narrow(0, 0, matrix_factors_);
    for (const comm::Group& group : weight_shards_) comm::all_reduce(of_matrices, group, comm::ReduceOp::max);
  }
  for (const nn::Param* param : layout_->params()) {
    const nn::RoundedWeight& rounded = *param->rounded;
    rounded.rounding.encode(*rounded.shard, rounded.magnitudes, rounded.column_codes.decode.view(-1));
  }
}

void ParamBuffer::start(size_t b) {
  Bucket& bucket = buckets_[b];
  if (bucket.in_flight) return;
  bucket.in_flight = true;
  if (options_.sharding.gathers_units()) {
    const FlatBucket& range = layout_->buckets()[b];
    const at::Tensor own = layout_->own_shard(gathered_storage(), b);
    bucket.data = at::empty({range.end - range.begin}, own.options());
    if (shard_.size() == 1) {
      bucket.data.copy_(own);
    } else {
      bucket.handle = comm::all_gather_into_async(bucket.data, own, shard_);
    }
    return;
  }
  const at::Tensor whole = layout_->bucket(gathered_storage(), b);
  if (shard_.size() > 1)
    bucket.handle = comm::all_gather_into_async(whole, layout_->bucket_own_shard(whole, b), shard_);
}

void ParamBuffer::finish(size_t b) {
  Bucket& bucket = buckets_[b];
  bucket.handle.wait();
  bucket.in_flight = bucket.stale = false;
  if (!options_.sharding.gathers_units()) return;
  for (const size_t i : layout_->buckets()[b].params) set_gathered(i, bucket.data);
}

void ParamBuffer::updated() {
  const bool gathers = options_.sharding.gathers_updates();
  if (gathers) {
    for (Bucket& bucket : buckets_) {
      bucket.handle.wait();  // finishes a gather of stale values; the bucket is gathered again
      bucket.in_flight = false;
      bucket.stale = true;
    }
  }
  if (gathers_codes()) encode_own();
  if (!gathers) return;
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
  for (const size_t i : layout_->buckets()[b].params) set_gathered(i, bucket.data);
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
