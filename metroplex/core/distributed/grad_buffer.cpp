#include "distributed/grad_buffer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/optimizer_step.h"

namespace metroplex::distributed {

static constexpr const char* kListener = "gradient buffer";
static constexpr int64_t kSums = sizeof(kernels::GradientSums) / sizeof(int64_t);

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
      remaining_uses_(layout_->params().size()) {
  const bool transient = options_.transient_buckets;
  storage_ = at::zeros({transient ? layout_->own_numel() : layout_->numel()}, tensor_options());
  for (size_t b = 0; b < buckets_.size() && !transient; ++b) {
    buckets_[b].data = layout_->bucket(storage_, b);
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
    param.on_use.add(kListener, [this, i] { count_use(i); });
  }
  make_own_gradients();
}

void GradBuffer::make_own_gradients() {
  size_t param = 0;
  for (const OwnRange& own_range : layout_->own_pieces()) {
    while (layout_->params()[param] != own_range.param) ++param;
    const size_t bucket = layout_->bucket_index(param);
    buckets_[bucket].own_ranges.push_back(own_gradients_.size());
    own_gradients_.push_back(
        own_shard(bucket).narrow(0, own_range.own - layout_->buckets()[bucket].own_begin, own_range.size()));
    const topology::Placement& placement = own_range.param->placement;
    const bool is_final = dp_.replicas.size() == 1 && placement.partial.empty() && placement.shared.empty();
    own_sums_.push_back(
        options_.fp32_sums && is_final
            ? at::empty({kernels::gradient_sums_blocks(own_range.size()), kSums}, tensor_options().dtype(at::kLong))
            : at::Tensor());
  }
}

std::vector<at::Tensor> GradBuffer::own_sums() const {
  std::vector<at::Tensor> sums(own_sums_.size());
  for (const Bucket& bucket : buckets_) {
    if (in_step_ || !bucket.has_sums) continue;
    for (const size_t i : bucket.own_ranges) sums[i] = own_sums_[i];
  }
  return sums;
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

int64_t GradBuffer::transient_bytes() const {
  const auto size = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  };
  int64_t bytes = size(pending_.received);
  if (!options_.transient_buckets) return bytes;
  for (const Bucket& bucket : buckets_) bytes += size(bucket.data);
  return bytes + size(pending_.data);
}

at::Tensor GradBuffer::own_shard(size_t b) const {
  return options_.transient_buckets ? layout_->own_shard(storage_, b)
                                    : layout_->bucket_own_shard(buckets_[b].data, b);
}

void GradBuffer::begin_step(int64_t num_microbatches) {
  if (options_.transient_buckets) {
    storage_.zero_();
  } else {
    for (nn::Param* param : layout_->params()) param->uninitialized = true;
  }
  filling_.begin(options_.transient_buckets ? 1 : num_microbatches);
  for (size_t i = 0; i < remaining_uses_.size(); ++i) {
    remaining_uses_[i] = layout_->params()[i]->uses_per_microbatch * num_microbatches;
  }
  for (Bucket& bucket : buckets_) bucket.reduced = bucket.has_sums = false;
  in_step_ = true;
}

void GradBuffer::make_bucket(size_t b) {
  const FlatBucket& bucket = layout_->buckets()[b];
  buckets_[b].data = at::zeros({bucket.end - bucket.begin}, tensor_options());
  for (const size_t i : bucket.params) layout_->params()[i]->main_grad = layout_->param_view(buckets_[b].data, i);
}

void GradBuffer::count_use(size_t param) {
  if (!in_step_) return;  // a backward outside a step (tests, probes)
  MPX_ASSERT(remaining_uses_[param] > 0, "parameter ", layout_->params()[param]->name,
             " was used more often than it declared");
  --remaining_uses_[param];
  const std::optional<size_t> full = filling_.use(param);
  if (full && (options_.overlap || options_.transient_buckets)) reduce(*full);
}

void GradBuffer::reduce(size_t b) {
  Bucket& bucket = buckets_[b];
  for (const size_t i : layout_->buckets()[b].params) {
    const nn::Param& param = *layout_->params()[i];
    MPX_ASSERT(param.is_synchronized(), "the gradient of ", param.name, " is reduced before all of it has arrived");
  }
  if (options_.transient_buckets) {
    start_reduce(b);
    return;
  }
  for (const size_t i : layout_->buckets()[b].params) layout_->params()[i]->zero_uninitialized();
  bucket.reduced = true;
  if (options_.fp32_sums) {
    finish_reduce();
    pending_.bucket = b;
    pending_.data = bucket.data;
    start_sums(b, bucket.data);
  } else if (dp_.shard.size() > 1) {
    bucket.handle =
        comm::reduce_scatter_into_async(layout_->bucket_own_shard(bucket.data, b), bucket.data, dp_.shard);
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
  if (options_.fp32_sums) {
    start_sums(b, pending_.data);
  } else if (dp_.shard.size() > 1) {
    pending_.handle =
        comm::reduce_scatter_into_async(layout_->bucket_own_shard(pending_.data, b), pending_.data, dp_.shard);
  }
  if (!filling_.leaving()) finish_reduce();
}

void GradBuffer::start_sums(size_t bucket, const at::Tensor& data) {
  const int64_t own = layout_->buckets()[bucket].own_size;
  const std::vector<int64_t> splits(static_cast<size_t>(dp_.shard.size()), own);
  comm::Exchange exchange = comm::all_to_all_async(data, splits, splits, dp_.shard);
  pending_.received = exchange.out;
  pending_.handle = std::move(exchange.handle);
}

// Sums the received shards into the own gradients. Every reduction of a step overwrites their gradient sums.
void GradBuffer::finish_sums() {
  const FlatBucket& layout = layout_->buckets()[pending_.bucket];
  Bucket& bucket = buckets_[pending_.bucket];
  std::vector<kernels::ShardSum> sums;
  std::vector<const at::Tensor*> reads{&pending_.received}, writes;
  for (const size_t i : bucket.own_ranges) {
    const OwnRange& range = layout_->own_pieces()[i];
    const at::Tensor &gradient = own_gradients_[i], &own_sums = own_sums_[i];
    sums.push_back({range.own - layout.own_begin, range.size(), gradient.mutable_data_ptr(),
                    own_sums.defined() ? static_cast<kernels::GradientSums*>(own_sums.mutable_data_ptr()) : nullptr});
    if (options_.transient_buckets) reads.push_back(&gradient);
    writes.insert(writes.end(), {&gradient, &own_sums});
  }
  bucket.has_sums = true;
  if (sums.empty()) return;
  const kernels::ReceivedShards received{
      pending_.received.const_data_ptr(),
      options_.dtype == at::kBFloat16 ? kernels::Number::bf16 : kernels::Number::f16, dp_.shard.size(),
      layout.own_size, options_.transient_buckets};
  device::launch(options_.target, {"sum_shards", reads, writes}, kernels::sum_shards, kernels::sum_shards_cuda, sums,
                 received);
}

void GradBuffer::finish_reduce() {
  if (!pending_.data.defined()) return;
  pending_.handle.wait();
  if (options_.fp32_sums) {
    finish_sums();
  } else {
    layout_->own_shard(storage_, pending_.bucket).add_(layout_->bucket_own_shard(pending_.data, pending_.bucket));
  }
  pending_ = {};
}

void GradBuffer::reduce_over_replicas() {
  if (dp_.replicas.size() == 1) return;
  std::vector<comm::Handle> handles;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    handles.push_back(comm::all_reduce_async(own_shard(b), dp_.replicas));
  }
  for (comm::Handle& handle : handles) handle.wait();
}

void GradBuffer::finish() {
  for (size_t i = 0; i < remaining_uses_.size(); ++i) {
    MPX_ASSERT(remaining_uses_[i] == 0, "parameter ", layout_->params()[i]->name, " still waits for ",
               remaining_uses_[i], " gradients");
  }
  in_step_ = false;
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
  finish_reduce();
  if (dp_.shard.size() > 1) reduce_over_replicas();
}

}  // namespace metroplex::distributed
