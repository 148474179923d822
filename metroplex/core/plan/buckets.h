// Positions of all gradients in a rank's contiguous buffer, and the buckets that are reduced while backward still
// runs. Parameters are laid out in reverse model order, so the first bucket fills first. A bucket closes when it
// reaches bucket_size. For a distributed optimizer, parameter starts and bucket ends are rounded up. Every
// data-parallel rank then owns an equal, aligned shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "config/parallel.h"

namespace metroplex::plan {

struct BucketOptions {
  int64_t bucket_size = 0;           // elements; 0: one bucket
  int64_t param_start_multiple = 1;  // elements
  int64_t bucket_end_multiple = 1;
  bool shared_embedding_alone = false;  // a parameter marked as shared gets its own bucket
};

// Parameters start at multiples of 64 and buckets end at multiples of lcm(dp, 128). Shared embeddings get their own
// bucket.
BucketOptions distributed_optimizer_buckets(int64_t bucket_size, int64_t dp);

struct BucketParam {
  int64_t num_elements = 0;
  bool shared_embedding = false;
};

struct BucketSlot {
  int64_t begin = 0, end = 0;  // elements in the buffer
  int bucket = 0;
  bool operator==(const BucketSlot&) const = default;
};

struct Bucket {
  int64_t begin = 0, end = 0;  // includes the padding at the end
  int64_t num_unpadded = 0;    // begin .. end of the last parameter
  std::vector<int> params;     // indices into the input list, in buffer order
};

struct BucketPlan {
  std::vector<BucketSlot> slots;  // one per parameter, in input order
  std::vector<Bucket> buckets;
  int64_t num_elements = 0;
};

// `params` is in model order (first layer first).
BucketPlan plan_buckets(const std::vector<BucketParam>& params, const BucketOptions& options);

// Returns the gradient bucket size in elements for dp ranks: parallel.ddp_bucket_size, or max(40M, 1M * dp). Returns
// 0 for a single bucket (no overlap) or one bucket per unit (config::Sharding).
int64_t gradient_bucket_size(const config::Parallel& parallel, const config::Sharding& sharding, int64_t dp);

// Tracks how full the gradient buckets are. With ZeRO-2 and 3 a bucket is allocated with its first gradient. When all
// of its parameters have the gradients of one microbatch, it is reduced and freed, one bucket at a time. The live
// buckets follow from the order of the gradients alone. The gradient buffer and the memory replay both use this
// class.
class FillingBuckets {
 public:
  // `params`: parameter indices of each bucket. `uses`: gradients per microbatch of each parameter. `overlap`: a
  // bucket in reduction exists until the next one starts its reduction; otherwise it is freed at once.
  FillingBuckets(std::vector<std::vector<size_t>> params, std::vector<int64_t> uses, bool overlap);

  // Starts a step with empty buckets. A bucket is full when it has the gradients of `num_microbatches` microbatches.
  void begin(int64_t num_microbatches = 1);
  // Call before a gradient of `param` is added. Returns its bucket if it must be allocated now.
  std::optional<size_t> open(size_t param);
  // Call after a gradient of `param` was added. Returns its bucket if it is now full. The bucket then starts its
  // reduction and is empty again, and the previous bucket in reduction is freed.
  std::optional<size_t> use(size_t param);
  // Starts the reduction of a bucket that is not full.
  void leave(size_t bucket);

  bool filling(size_t bucket) const { return filling_[bucket]; }
  std::optional<size_t> leaving() const { return leaving_; }

 private:
  void rearm(size_t bucket);

  std::vector<std::vector<size_t>> params_;
  std::vector<size_t> bucket_of_;
  std::vector<int64_t> uses_;
  int64_t num_microbatches_ = 1;
  bool overlap_;
  std::vector<bool> filling_;
  std::vector<size_t> waiting_;  // by bucket: parameters with missing gradients
  // By parameter: missing gradients; negative while its bucket waits for other parameters.
  std::vector<int64_t> missing_;
  std::optional<size_t> leaving_;
};

}  // namespace metroplex::plan
