// Main gradients in contiguous buckets, in reverse order of the parameters, so that the bucket whose gradients are
// final first is reduced over the data-parallel ranks while backward still runs. A gradient is final when all its
// uses of the step (segments that share the parameter x microbatches) have been accumulated.
// Up to ZeRO-1 the buckets stay and are reduced once a step. From ZeRO-2 on a bucket exists from the first gradient
// that goes into it until all of its parameters have had a microbatch's worth; then it is reduced into the own part
// and freed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "comm/group.h"
#include "nn/param.h"
#include "distributed/flat_layout.h"
#include "plan/filling_buckets.h"

namespace metroplex::distributed {

// The data-parallel ranks: those that share the state between them, and those that hold the same part of it.
struct DataParallel {
  comm::Group shard;     // without sharding a group of one
  comm::Group replicas;  // without sharding all data-parallel ranks
  int size() const { return shard.size() * replicas.size(); }
  bool first() const { return shard.first() && replicas.first(); }
};

struct GradBufferOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  bool overlap = true;             // reduce a bucket as soon as it is ready; else all of them in finish()
  bool transient_buckets = false;  // ZeRO-2 and 3
};

class GradBuffer {
 public:
  // Sets main_grad of every parameter of the layout, which outlives the buffer, and listens to its uses.
  GradBuffer(std::shared_ptr<const FlatLayout> layout, DataParallel dp, GradBufferOptions options);
  ~GradBuffer();
  GradBuffer(const GradBuffer&) = delete;
  GradBuffer& operator=(const GradBuffer&) = delete;

  // Forgets all gradients and arms the counters for a step of this many microbatches. (Zeros would be one more pass
  // over the memory: the first gradient of a parameter is written over what lies there.)
  void begin_step(int64_t num_microbatches);
  // Collective over dp, once a step: reduces what is still unreduced and waits. Afterwards own_gradients() are final:
  // sums over the data-parallel ranks (a mean is taken by whoever reads them, with the loss scale: unscale_of).
  // Throws when a parameter has seen fewer uses than it declared.
  void finish();

  // Gives every parameter a main_grad of its own and listens no more: for a trace of layers (train/trace.h), which
  // leaves it to the replay which buckets exist.
  void detach_params();

  // One-dimensional views, one for each of layout().own_pieces().
  const std::vector<at::Tensor>& own_gradients() const { return own_gradients_; }
  const FlatLayout& layout() const { return *layout_; }
  const GradBufferOptions& options() const { return options_; }
  // What is kept all the time: all buckets, or the own parts.
  const at::Tensor& kept() const { return kept_; }
  // Of transient buckets that are filled or reduced now.
  int64_t transient_bytes() const {
    int64_t bytes = pending_.data.defined() ? static_cast<int64_t>(pending_.data.nbytes()) : 0;
    for (const Bucket& bucket : buckets_) {
      if (options_.transient_buckets && bucket.data.defined()) bytes += static_cast<int64_t>(bucket.data.nbytes());
    }
    return bytes;
  }

 private:
  struct Bucket {
    at::Tensor data;
    bool reduced = false;
    comm::Handle handle;
  };
  at::TensorOptions tensor_options() const {
    return at::TensorOptions().dtype(options_.dtype).device(options_.device);
  }
  at::Tensor own_part(size_t bucket) const;
  void stop_listening();
  void make_bucket(size_t bucket);
  void used(size_t param);
  void reduce(size_t bucket);
  void start_reduce(size_t bucket);
  void finish_reduce();
  void reduce_over_replicas();

  std::shared_ptr<const FlatLayout> layout_;
  DataParallel dp_;
  GradBufferOptions options_;
  at::Tensor kept_;
  std::vector<Bucket> buckets_;
  plan::FillingBuckets filling_;
  std::vector<at::Tensor> own_gradients_;
  std::vector<int64_t> uses_left_;  // by parameter, in this step
  // Transient: the one bucket whose reduction is under way; new gradients go into a new one meanwhile.
  struct PendingReduce {
    size_t bucket = 0;
    at::Tensor data;
    comm::Handle handle;
  } pending_;
  bool armed_ = false;
};

}  // namespace metroplex::distributed
