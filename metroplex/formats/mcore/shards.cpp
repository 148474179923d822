#include "mcore/shards.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::mcore {
namespace {

constexpr int kReplicated = -1;
constexpr int64_t kAlignment = 64;

// Some versions divide the projections to the latents of attention, others replicate them.
bool is_divided_latent(const Arguments& arguments, int64_t tp, const std::string& name, const Dims& size) {
  const auto width = [&](const char* argument) { return integer_argument(arguments, argument, 0); };
  const int64_t rows = size.empty() ? 0 : size[0] * tp;
  return (name.ends_with("linear_q_down_proj.weight") && rows == width("q_lora_rank")) ||
         (name.ends_with("linear_kv_down_proj.weight") &&
          rows == width("kv_lora_rank") + width("qk_pos_emb_head_dim"));
}

}  // namespace

bool is_true(const Arguments& arguments, const char* name) {
  const auto found = arguments.find(name);
  return found != arguments.end() && found->second == std::vector<std::string>{"True"};
}

bool is_local(const Arguments& arguments) {
  const auto found = arguments.find("transformer_impl");
  return found != arguments.end() && found->second == std::vector<std::string>{"local"};
}

Layout read_layout(const Arguments& arguments) {
  const auto size = [&](const char* name, int64_t absent) {
    return std::max<int64_t>(integer_argument(arguments, name, absent), 1);
  };
  Layout layout;
  layout.tp = size("tensor_model_parallel_size", 1);
  layout.pp = size("pipeline_model_parallel_size", 1);
  layout.ep = size("expert_model_parallel_size", 1);
  layout.etp = size("expert_tensor_parallel_size", layout.tp);
  layout.chunks = size("virtual_pipeline_model_parallel_size", 1);
  layout.experts = integer_argument(arguments, "num_experts", 0);
  layout.gated = is_true(arguments, "swiglu") || is_true(arguments, "quick_geglu");
  layout.tied = !is_true(arguments, "untie_embeddings_and_output_weights");
  return layout;
}

int find_split(const std::string& name) {
  const auto ends = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return name.ends_with(word); });
  };
  if (ends({"linear_proj.weight", "linear_fc2.weight"})) return 1;
  const bool divided =
      ends({"word_embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias",
            "linear_fc1.weight", "linear_fc1.bias", "linear_q_proj.weight", "linear_q_up_proj.weight",
            "linear_kv_up_proj.weight", "eh_proj.weight", "core_attention.softmax_offset"});
  return divided ? 0 : kReplicated;
}

Dims Shard::shape() const {
  Dims whole = size;
  if (parts > 1) whole[dim] *= parts;
  return whole;
}

Shard make_shard(const Arguments& arguments, const Layout& layout, const std::string& name, files::Dtype dtype,
                 const Dims& size, bool is_expert, int64_t part) {
  const int64_t parts = is_expert ? layout.etp : layout.tp;
  const int split = parts == 1                                            ? kReplicated
                    : is_divided_latent(arguments, layout.tp, name, size) ? 0
                                                                          : find_split(name);
  Shard shard{name, dtype, size};
  shard.is_expert = is_expert;
  shard.part = is_expert && layout.etp == 1 ? 0 : part;
  if (split == kReplicated) return shard;
  shard.dim = static_cast<size_t>(split);
  shard.parts = parts;
  shard.groups = layout.gated && (name.ends_with("linear_fc1.weight") || name.ends_with("linear_fc1.bias")) ? 2 : 1;
  MPX_CHECK(shard.dim < size.size() && size[shard.dim] % shard.groups == 0, "checkpoint", name, " has shape ",
            checkpoint::describe_shape(size),
            ", which tensor parallelism cannot divide; copy the files of one checkpoint");
  return shard;
}

void add_chunks(const Shard& shard, int64_t begin, int64_t end, const Chunk& data, StoredTensor& out) {
  Dims offset(shard.size.size(), 0), size = shard.size;
  if (shard.parts > 1) size[shard.dim] /= shard.groups;
  const int64_t count = checkpoint::whole_piece(size).count(), width = files::dtype_bits(out.dtype) / 8;
  for (int64_t group = 0; group < shard.groups; ++group) {
    if (shard.parts > 1) offset[shard.dim] = (group * shard.parts + shard.part) * size[shard.dim];
    const int64_t first = std::max(begin, group * count), last = std::min(end, (group + 1) * count);
    if (first >= last) continue;
    Chunk chunk = data;
    chunk.offset = offset, chunk.size = size;
    chunk.from = first - group * count, chunk.to = last - group * count;
    chunk.skipped += first - begin;
    if (chunk.data != nullptr) chunk.data += (first - begin) * width;
    out.chunks.push_back(std::move(chunk));
  }
}

Buckets place_shards(const std::vector<const Shard*>& shards, const BucketRule& rule) {
  Buckets buckets;
  buckets.places.resize(shards.size());
  int64_t at = 0;
  const auto end_bucket = [&](int64_t size) {
    buckets.sizes.push_back(size);
    at = 0;
  };
  for (size_t i = shards.size(); i-- > 0;) {
    const Shard& shard = *shards[i];
    at = (at + kAlignment - 1) / kAlignment * kAlignment;
    if (at > 0 && rule.ends_before(shard, buckets.sizes.size(), at)) end_bucket(at);
    buckets.places[i] = {buckets.sizes.size(), at};
    at += shard.count();
    if (rule.ends_after(shard, buckets.sizes.size(), at)) end_bucket(at);
  }
  if (at > 0) end_bucket(at);
  return buckets;
}

std::vector<Buffer> list_buffers(const std::vector<std::vector<Shard>>& chunks, const Layout& layout, bool experts) {
  std::vector<Buffer> buffers;
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    for (const Shard& shard : chunks[chunk]) {
      if ((shard.is_expert && layout.ep > 1) != experts) continue;
      const auto same = std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& buffer) {
        return buffer.chunk == chunk && buffer.shards.front()->dtype == shard.dtype;
      });
      if (same == buffers.end()) buffers.push_back({chunk, {&shard}});
      else same->shards.push_back(&shard);
    }
  }
  return buffers;
}

}  // namespace metroplex::mcore
