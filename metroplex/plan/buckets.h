// Where every gradient lies in the contiguous buffer of a rank, and how the buffer is cut into buckets that are
// reduced while backward still runs. Parameters are laid out in reverse order of the model, so the first bucket is
// full first; a bucket closes when it has reached bucket_size. For a distributed optimizer parameter starts and
// bucket ends are rounded up, so that every data-parallel rank owns an equal, aligned shard.
#pragma once

#include <cstdint>
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

}  // namespace metroplex::plan
