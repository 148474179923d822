// Parameter values sharded over data-parallel ranks. ZeRO-1 and ZeRO-2: every rank holds all values in one flat range
// and updates its own shard. After an update each bucket is all-gathered, at the latest when a block needs it.
// ZeRO-3: a rank holds only its own shards. The buckets of a block are gathered before its forward and backward, one
// block ahead, and freed after it.
// Parameters that products read as 8-bit codes (precision.fp8_param_gather): a rank holds only its own shards of the
// values, as with ZeRO-3, and gathers codes, as above.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "comm/group.h"
#include "config/parallel.h"
#include "nn/stage_observer.h"
#include "distributed/flat_layout.h"

namespace metroplex::distributed {

struct ParamBufferOptions {
  config::Sharding sharding;
  // ZeRO-1 and ZeRO-2. overlap: gather during the next forward, one bucket ahead of its use. align: gather all
  // buckets right after the update, so that all pipeline stages gather at the same time.
  bool overlap = true, align = false;
  bool as_codes = false;  // all parameters have a RoundedWeight that can gather codes
  at::TensorOptions tensor;
};

class ParamBuffer {
 public:
  // Moves the values of the layout's parameters into its own memory; materializes deferred parameters one by one.
  // Without sharding, parameters keep their storage, and all functions below do nothing.
  ParamBuffer(std::shared_ptr<const FlatLayout> layout, comm::Group shard, ParamBufferOptions options);
  ~ParamBuffer();
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  // One-dimensional views that an update writes, one per entry of layout().own_pieces().
  const std::vector<at::Tensor>& own_values() const { return own_values_; }
  const FlatLayout& layout() const { return *layout_; }
  // The permanent values: all buckets, or the own shards (ZeRO-3, codes); undefined without sharding.
  const at::Tensor& storage() const { return storage_; }
  // Permanent memory of codes with their factors.
  int64_t codes_bytes() const;
  // Size of the buckets that are gathered or being gathered (ZeRO-3).
  int64_t gathered_bytes() const {
    int64_t bytes = 0;
    for (const Bucket& bucket : buckets_)
      bytes += bucket.data.defined() ? static_cast<int64_t>(bucket.data.nbytes()) : 0;
    return bytes;
  }

  // Marks gathered and in-flight values as stale after own values have changed. This and the functions below are
  // collective over the shard group, in the same order on every rank. Code that writes own values outside a step must
  // call finish_gathers() first, because a gather in flight reads them.
  void updated();
  // Between acquire and release, the bucket's Param::data are complete. prefetch starts the gather that acquire waits
  // for.
  void acquire(size_t bucket);
  void prefetch(size_t bucket);
  void release(size_t bucket);
  // Completes all stale buckets and waits for all gathers in flight.
  void finish_gathers();

 private:
  struct Bucket {
    at::Tensor data;  // ZeRO-3: defined while gathered
    bool stale = false, in_flight = false;
    int users = 0;
    comm::Handle handle;
  };
  bool holds_own_values() const { return options_.sharding.parameters || gathers_codes(); }
  bool gathers_codes() const { return options_.as_codes && options_.sharding.any(); }
  // The tensor that gathers read: all buckets, or the own shards (ZeRO-3).
  const at::Tensor& gathered_storage() const { return gathers_codes() ? codes_ : storage_; }
  at::Tensor own_view(const at::Tensor& storage, bool of_shards, size_t param, const OwnRange& range) const;
  void adopt_values();
  void adopt_codes();
  void adopt_factors(size_t param, int64_t first);
  void set_gathered(size_t param, const at::Tensor& bucket_data) const;
  void encode_own();
  void start(size_t bucket);
  void finish(size_t bucket);

  std::shared_ptr<const FlatLayout> layout_;
  comm::Group shard_;
  ParamBufferOptions options_;
  at::Tensor storage_;              // all buckets, or the own shards
  at::Tensor codes_;                // bytes: ZeRO-1 and 2: all buckets; ZeRO-3: the own shards
  at::Tensor magnitudes_, decode_;  // for all factors of all parameters, first those of whole matrices
  int64_t matrix_factors_ = 0;
  std::vector<comm::Group> weight_shards_;  // groups whose ranks hold other shards of the same matrices
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> own_values_;
};

struct ParamBucket {
  ParamBuffer* buffer;
  size_t bucket;
  bool operator==(const ParamBucket&) const = default;
};

// Acquires, prefetches and releases the buckets of each block of one stage.
class BlockGather final : public nn::StageObserver {
 public:
  explicit BlockGather(std::vector<std::vector<ParamBucket>> buckets) : buckets_(std::move(buckets)) {}
  void before(const nn::RegionEvent& event) override;
  void after(const nn::RegionEvent& event) override;

 private:
  std::vector<std::vector<ParamBucket>> buckets_;
};

}  // namespace metroplex::distributed
