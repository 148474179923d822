// Parameter values sharded over data-parallel ranks. ZeRO-1 and 2: every rank holds all values in one flat range and
// updates its own part; after an update each bucket is all-gathered, at the latest when a block needs it. ZeRO-3: a
// rank holds its own parts only; the buckets of a block are gathered before its forward and its backward, one block
// ahead, and freed after it.
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
  // ZeRO-1 and 2. overlap: gather during the next forward, one bucket ahead of its use. align: gather all of them
  // right after the update, so that every pipeline stage gathers at the same time.
  bool overlap = true, align = false;
  at::TensorOptions tensor;
};

class ParamBuffer {
 public:
  // Moves the values of the layout's parameters into its own memory; deferred ones are materialized one by one.
  // Without sharding parameters keep their own storage, and everything below does nothing.
  ParamBuffer(std::shared_ptr<const FlatLayout> layout, comm::Group shard, ParamBufferOptions options);
  ~ParamBuffer();
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  // One-dimensional views, one for each of layout().own_pieces(): what an update writes.
  const std::vector<at::Tensor>& own_values() const { return own_values_; }
  const FlatLayout& layout() const { return *layout_; }
  // The permanent memory: all buckets, or (ZeRO-3) the own parts; undefined without sharding.
  const at::Tensor& kept() const { return kept_; }
  // Of the buckets that are gathered or being gathered (ZeRO-3).
  int64_t gathered_bytes() const {
    int64_t bytes = 0;
    for (const Bucket& bucket : buckets_)
      bytes += bucket.data.defined() ? static_cast<int64_t>(bucket.data.nbytes()) : 0;
    return bytes;
  }

  // Own values have changed: what was gathered before, or is in flight, is stale. This and the calls below are
  // collective over the shard group, in the same order on every rank. Code that writes own values other than in a
  // step calls settle() first, because a gather in flight reads them.
  void updated();
  // Between acquire and release the bucket's Param::data are complete. prefetch starts what acquire will wait for.
  void acquire(size_t bucket);
  void prefetch(size_t bucket);
  void release(size_t bucket);
  // Waits for all gathers in flight.
  void settle();

 private:
  struct Bucket {
    at::Tensor data;  // ZeRO-3: defined while gathered
    bool stale = false, in_flight = false;
    int users = 0;
    comm::Handle handle;
  };
  void take_values();
  void start(size_t bucket);
  void finish(size_t bucket);

  std::shared_ptr<const FlatLayout> layout_;
  comm::Group shard_;
  ParamBufferOptions options_;
  at::Tensor kept_;  // ZeRO-1 and 2: all buckets; 3: the own parts
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> own_values_;
};

struct ParamBucket {
  ParamBuffer* buffer;
  size_t bucket;
  bool operator==(const ParamBucket&) const = default;
};

// Acquires, prefetches and releases buckets around the blocks of one stage. `buckets`: the buckets of each block.
class BlockGather final : public nn::StageObserver {
 public:
  explicit BlockGather(std::vector<std::vector<ParamBucket>> buckets) : buckets_(std::move(buckets)) {}
  void before(const nn::IslandEvent& event) override;
  void after(const nn::IslandEvent& event) override;

 private:
  std::vector<std::vector<ParamBucket>> buckets_;
};

}  // namespace metroplex::distributed
