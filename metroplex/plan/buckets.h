// Where every gradient lies in the contiguous buffer of a rank, and how the buffer is cut into buckets that are
// reduced while backward still runs. Parameters are laid out in reverse order of the model, so the first bucket is
// full first; a bucket closes when it has reached bucket_size. For a distributed optimizer parameter starts and
// bucket ends are rounded up, so that every data-parallel rank owns an equal, aligned shard.
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
  bool shared_embedding_alone = false;  // a parameter marked as shared has a bucket of its own
};

// Parameters at multiples of 64, buckets end at lcm(dp, 128); shared embeddings alone.
BucketOptions distributed_optimizer_buckets(int64_t bucket_size, int64_t dp);

struct BucketParam {
  int64_t num_elements = 0;
  bool shared_embedding = false;
};

struct BucketSlot {
  int64_t begin = 0, end = 0;  // elements of the buffer
  int bucket = 0;
  bool operator==(const BucketSlot&) const = default;
};

struct Bucket {
  int64_t begin = 0, end = 0;  // with the padding at its end
  int64_t num_unpadded = 0;    // begin .. last parameter
  std::vector<int> params;     // indices into the list given, in the order of the buffer
};

struct BucketPlan {
  std::vector<BucketSlot> slots;  // one a parameter, in the order given
  std::vector<Bucket> buckets;
  int64_t num_elements = 0;  // of the whole buffer
};

// `params` in the order of the model (first layer first).
BucketPlan plan_buckets(const std::vector<BucketParam>& params, const BucketOptions& options);

// Elements a bucket of the gradients of a run with this sharding, shared by dp ranks: parallel.ddp_bucket_size, or
// max(40M, 1M * dp); 0: one bucket (no overlap), or one per unit (config::Sharding).
int64_t gradient_bucket_size(const config::Parallel& parallel, const config::Sharding& sharding, int64_t dp);

// Counts how full the gradient buckets are. With ZeRO-2 and 3 a bucket is allocated with the first gradient that goes
// into it; when all of its parameters have the gradients of one microbatch, it leaves: it is reduced and freed, one
// bucket at a time. Which buckets exist follows from the order of the gradients alone, so the gradient buffer and the
// memory replay both ask here.
class FillingBuckets {
 public:
  // `params`: the parameters of each bucket, as indices. `uses`: of each parameter, its gradients per microbatch.
  // `overlap`: a leaving bucket exists until the next one leaves; else it is freed at once.
  FillingBuckets(std::vector<std::vector<size_t>> params, std::vector<int64_t> uses, bool overlap);

  // A step begins: all buckets are empty. One is full when it has the gradients of `num_microbatches` microbatches.
  void begin(int64_t num_microbatches = 1);
  // A gradient of `param` is about to be added. Returns its bucket if that has to be allocated now.
  std::optional<size_t> open(size_t param);
  // A gradient of `param` has been added. Returns its bucket if that is now full: it leaves, the one that left before
  // is freed, and it is empty again.
  std::optional<size_t> use(size_t param);
  // Makes a bucket leave that is not full.
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
  std::vector<size_t> waiting_;   // by bucket: parameters that still miss gradients
  std::vector<int64_t> missing_;  // by parameter: gradients; below zero while its bucket waits for other parameters
  std::optional<size_t> leaving_;
};

}  // namespace metroplex::plan
