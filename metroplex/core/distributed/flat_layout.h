// The positions of a rank's parameters in one flat range of elements, divided into buckets, and this rank's shard of
// each bucket. The rank stores only its shard of the optimizer state (ZeRO-1), reduced gradients (ZeRO-2) and values
// (ZeRO-3). Without sharding, the group has one member that owns everything.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "nn/param.h"
#include "plan/buckets.h"

namespace metroplex::distributed {

// Own elements of one parameter: [begin, end) of its flattened local tensor, at offset `own` in the concatenated own
// shards.
struct OwnRange {
  nn::Param* param = nullptr;
  int64_t begin = 0, end = 0;
  int64_t own = 0;
  int64_t size() const { return end - begin; }
};

struct FlatLayoutOptions {
  int64_t bucket_size = 0;        // elements; 0: one bucket
  bool sharded = false;           // aligned as in Megatron's distributed optimizer
  int num_shards = 1, index = 0;  // size and index in the sharding group
  // Number of parameters of each ZeRO-3 unit, in order. Units share no bucket. Empty: one unit.
  std::vector<size_t> units;
};

struct FlatBucket {
  int64_t begin = 0, end = 0;  // in the flat range
  std::vector<size_t> params;  // indices, in the order of the flat range
  int64_t own_begin = 0;       // offset of the own shard in the concatenated own shards
  int64_t own_size = 0;
};

class FlatLayout {
 public:
  // `params` in forward order; they must outlive the layout.
  FlatLayout(std::vector<nn::Param*> params, const FlatLayoutOptions& options);

  const std::vector<nn::Param*>& params() const { return params_; }
  const std::vector<FlatBucket>& buckets() const { return buckets_; }
  const std::vector<OwnRange>& own_pieces() const { return own_ranges_; }  // in forward order of the parameters
  size_t bucket_index(size_t param) const { return bucket_index_[param]; }
  int64_t numel() const { return numel_; }  // including padding
  int64_t own_numel() const { return own_numel_; }

  // Return views. `whole` is [numel()], `bucket_data` is one bucket, and `own_data` is [own_numel()], the
  // concatenated own shards.
  at::Tensor bucket(const at::Tensor& whole, size_t bucket) const;
  at::Tensor bucket_own_shard(const at::Tensor& bucket_data, size_t bucket) const;
  at::Tensor own_shard(const at::Tensor& own_data, size_t bucket) const;
  // Returns the parameter's view of its bucket, in its local shape.
  at::Tensor param_view(const at::Tensor& bucket_data, size_t param) const;

 private:
  void add_unit(size_t first, size_t count, const FlatLayoutOptions& options);
  void find_own_ranges();

  std::vector<nn::Param*> params_;
  int num_shards_, index_;
  std::vector<FlatBucket> buckets_;
  std::vector<size_t> bucket_index_;
  std::vector<int64_t> offset_in_bucket_;
  std::vector<OwnRange> own_ranges_;
  int64_t numel_ = 0, own_numel_ = 0;
};

}  // namespace metroplex::distributed
