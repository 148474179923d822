// Shards of Megatron's tensors on its tensor-, pipeline- and expert-parallel ranks, and their locations in the flat
// buffers of its distributed optimizer (megatron/core/distributed/param_and_grad_buffer.py).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "mcore/contents.h"

namespace metroplex::mcore {

// Parallel sizes of the args, at least 1.
struct Layout {
  int64_t tp = 1, pp = 1, ep = 1, etp = 1, chunks = 1, experts = 0;
  bool gated = false, tied = false;
};
Layout read_layout(const Arguments& arguments);
bool is_true(const Arguments& arguments, const char* name);
bool is_local(const Arguments& arguments);  // without Transformer Engine

// The tensor of one rank: shard `part` of `parts` along `dim`. Each of its `groups` (gate and up) is divided
// separately. A replicated tensor has one part; those of ranks other than 0 are not stored.
struct Shard {
  std::string name;  // with global numbers of layers and experts
  files::Dtype dtype = files::Dtype::kF32;
  Dims size;
  size_t dim = 0;
  int64_t parts = 1, part = 0, groups = 1;
  bool is_expert = false;

  int64_t count() const { return checkpoint::whole_piece(size).count(); }
  Dims shape() const;
  bool is_replica() const { return parts == 1 && part != 0; }
};

// Returns the dimension that tensor parallelism divides; -1 for a replicated tensor.
int find_split(const std::string& name);
// Returns a rank's shard of `size`. `name` has global numbers; `part` is the rank in its tensor-parallel group.
Shard make_shard(const Arguments& arguments, const Layout& layout, const std::string& name, files::Dtype dtype,
                 const Dims& size, bool is_expert, int64_t part);
// Adds the elements [begin, end) of a shard to `out`. `data` is the location of element `begin`.
void add_chunks(const Shard& shard, int64_t begin, int64_t end, const Chunk& data, StoredTensor& out);

// Location of a parameter in a buffer.
struct Place {
  size_t bucket = 0;
  int64_t begin = 0;
};
struct Buckets {
  std::vector<Place> places;   // of each shard
  std::vector<int64_t> sizes;  // without the padding at the end
};
// Whether a bucket ends before a shard that would begin at `at`, and after a shard that ends at `at`.
struct BucketRule {
  std::function<bool(const Shard&shard, size_t bucket, int64_t at)> ends_before, ends_after;
};
// The rule of megatron.core's DistributedDataParallel; `is_divided`: in the first model chunk of the first stage.
// Tied embeddings of two stages have their own buckets.
BucketRule make_bucket_rule(const Arguments& arguments, const Layout& layout, bool is_divided);
// Places the parameters of one buffer, given in the order of the model. The buffer has the reverse order, and each
// parameter begins at a multiple of 64 elements.
Buckets place_shards(const std::vector<const Shard*>& shards, const BucketRule& rule);
struct Buffer {
  size_t chunk = 0;  // of the model
  std::vector<const Shard*> shards;
};
// Returns the buffers of a rank: one per model chunk and dtype. Expert-parallel parameters have their own buffers.
std::vector<Buffer> list_buffers(const std::vector<std::vector<Shard>>& chunks, const Layout& layout, bool experts);

// Optimizer state of one rank of the torch format. `chunks`: parameters of its model chunks. `buffers`: its
// distrib_optim.pt, or nullptr. Returns "", or why the state is not read.
struct ShardState {
  const Shard* shard = nullptr;
  const char* kind = "";
  pickle::Tensor tensor;
};
std::string read_rank_state(const pickle::TorchFile& file, const pickle::TorchFile* buffers,
                            const Arguments& arguments, bool first_stage,
                            const std::vector<std::vector<Shard>>& chunks, std::vector<ShardState>& out);

// Whether a tensor of torch_dist is a bucket of the distributed optimizer.
bool is_bucket(const std::string& name);
// Adds the optimizer state in `buckets`, by stored name. Returns "", or why it is not read.
std::string join_buckets(const std::map<std::string, StoredTensor>& buckets, Contents& out);

// Returns the steps of `optimizer`: their number, or the state of an optimizer or of several. 0 if it has none.
int64_t read_steps(const pickle::TorchFile& file, const pickle::Value& optimizer);

}  // namespace metroplex::mcore
