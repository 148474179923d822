// Main gradients in contiguous buckets, in reverse order of the parameters. A bucket with complete gradients is
// reduced over the data-parallel ranks while backward still runs. A gradient is complete when all its uses in the
// step (segments that read the parameter x microbatches) have been accumulated.
// Up to ZeRO-1, the buckets are permanent, [bucket elements] each, and are reduced once per step. From ZeRO-2 on, a
// bucket is allocated with its first gradient. When all its parameters have the gradients of one microbatch, the
// bucket is reduce-scattered. The result is added to the permanent own shard [bucket elements / shard size], and the
// bucket is freed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "comm/group.h"
#include "device/launch_point.h"
#include "nn/param.h"
#include "distributed/flat_layout.h"
#include "plan/buckets.h"

namespace metroplex::distributed {

// The data-parallel ranks: the group that shards state, and the group whose members hold the same shard.
struct DataParallel {
  comm::Group shard;     // without sharding: one rank
  comm::Group replicas;  // without sharding: all data-parallel ranks
  int size() const { return shard.size() * replicas.size(); }
  int index() const { return shard.index() * replicas.size() + replicas.index(); }
  bool first() const { return shard.first() && replicas.first(); }
};

struct GradBufferOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  bool overlap = true;             // reduce each bucket as soon as it is complete; else all in finish()
  bool transient_buckets = false;  // ZeRO-2 and ZeRO-3
  // Half gradients: an all-to-all replaces the reduce-scatter. Each rank adds the received shards in fp32, in the
  // order of the ranks, and rounds the sum once. At most one reduction is in flight, because it needs a buffer.
  bool fp32_sums = false;
  device::Target target = {};  // of the additions for fp32_sums
};

class GradBuffer {
 public:
  // Sets main_grad of every parameter of the layout and registers a listener for its uses. The parameters must
  // outlive the buffer.
  GradBuffer(std::shared_ptr<const FlatLayout> layout, DataParallel dp, GradBufferOptions options);
  ~GradBuffer();
  GradBuffer(const GradBuffer&) = delete;
  GradBuffer& operator=(const GradBuffer&) = delete;

  // Discards all gradients and sets the counters for a step with this number of microbatches. Permanent buckets are
  // not zeroed, which saves a pass over memory: Param::fresh makes the first gradient overwrite.
  void begin_step(int64_t num_microbatches);
  // Reduces the remaining buckets and waits. Afterwards own_gradients() are final sums over the data-parallel ranks;
  // unscaling divides them (unscale_of). Throws if a parameter had fewer uses than declared. Collective over dp, once
  // per step.
  void finish();

  // Gives every parameter a separate main_grad and stops listening. Layer traces (forecast/trace.h) need this,
  // because their replay decides which buckets exist.
  void detach_params();

  // One-dimensional views, one per entry of layout().own_pieces().
  const std::vector<at::Tensor>& own_gradients() const { return own_gradients_; }
  // With fp32_sums, the gradient sums of own_gradients() that the last reduction computed: per entry
  // [kernels::gradient_sums_blocks(size), 3] int64, see ShardSum::sums. Undefined outside the time from finish() to
  // begin_step(), and for gradients that are summed again after the reduction: over replicas, Placement::partial
  // axes, or holders of a shared parameter.
  std::vector<at::Tensor> own_sums() const;
  const FlatLayout& layout() const { return *layout_; }
  const GradBufferOptions& options() const { return options_; }
  // The permanent memory: all buckets, or the own shards with transient buckets.
  const at::Tensor& storage() const { return storage_; }
  // Size of the transient buckets that are being filled or reduced, and of the shards received for fp32_sums.
  int64_t transient_bytes() const;

 private:
  struct Bucket {
    at::Tensor data;
    std::vector<size_t> own_ranges;  // indices into own_pieces()
    bool reduced = false;
    bool has_sums = false;  // own_sums_ of these ranges are of this step
    comm::Handle handle;
  };
  at::TensorOptions tensor_options() const {
    return at::TensorOptions().dtype(options_.dtype).device(options_.device);
  }
  at::Tensor own_shard(size_t bucket) const;
  void make_own_gradients();
  void stop_listening();
  void make_bucket(size_t bucket);
  void count_use(size_t param);
  void reduce(size_t bucket);
  void start_reduce(size_t bucket);
  void start_sums(size_t bucket, const at::Tensor& data);
  void finish_sums();
  void finish_reduce();
  void reduce_over_replicas();

  std::shared_ptr<const FlatLayout> layout_;
  DataParallel dp_;
  GradBufferOptions options_;
  at::Tensor storage_;
  std::vector<Bucket> buckets_;
  plan::FillingBuckets filling_;
  std::vector<at::Tensor> own_gradients_, own_sums_;
  std::vector<int64_t> remaining_uses_;  // per parameter, in this step
  // Transient buckets or fp32_sums: the bucket whose reduction is in flight. New gradients for a transient bucket go
  // into a newly allocated one.
  struct PendingReduce {
    size_t bucket = 0;
    at::Tensor data;
    comm::Handle handle;
    at::Tensor received;  // fp32_sums: this rank's shards from all ranks [bucket elements]
  } pending_;
  bool in_step_ = false;
};

}  // namespace metroplex::distributed
