// Optimizer state that Megatron's distributed optimizer stores as its buckets (dp_reshardable). A bucket is a tensor
// of one dimension. Each range of a parameter on a data-parallel rank is a chunk, and so is padding.
#include "mcore/shards.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace metroplex::mcore {
namespace {

// Parameters of a layer in the order of Megatron's modules. The first experts stand for all.
constexpr const char* kOrder[] = {"input_layernorm.",
                                  "self_attention.core_attention.softmax_offset",
                                  "self_attention.linear_proj.",
                                  "self_attention.linear_q_proj.",
                                  "self_attention.linear_q_down_proj.",
                                  "self_attention.linear_q_up_proj.",
                                  "self_attention.linear_kv_down_proj.",
                                  "self_attention.linear_kv_up_proj.",
                                  "self_attention.linear_qkv.",
                                  "self_attention.q_layernorm.",
                                  "self_attention.k_layernorm.",
                                  "self_attention.kv_layernorm.",
                                  "pre_mlp_layernorm.",
                                  "mlp.router.",
                                  "mlp.experts.experts.linear_fc1.",
                                  "mlp.experts.experts.linear_fc2.",
                                  "mlp.shared_experts.gate_weight",
                                  "mlp.shared_experts.linear_fc1.",
                                  "mlp.shared_experts.linear_fc2.",
                                  "mlp.linear_fc1.",
                                  "mlp.linear_fc2."};
constexpr int64_t kMost = 10'000, kMostElements = int64_t{1} << 50;  // bounds the memory of damaged files
// Parameters of one module.
constexpr const char* kModuleOrder[] = {"layer_norm_weight", "layer_norm_bias", "weight", "bias", ""};
constexpr const char* kExperts = "mlp.experts.experts.";

struct LayerTensor {
  std::string tail;  // after the layer's number
  size_t module = 0, within = 0;
  const StoredTensor* tensor = nullptr;
  Dims shape;  // of one layer
};

// With --transformer-impl local, norms are modules of their own, although they are stored under the names of
// Transformer Engine.
std::string module_tail(const std::string& tail, bool local) {
  static constexpr std::pair<const char*, const char*> kFused[] = {
      {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
      {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."}};
  for (const auto& [fused, plain] : kFused) {
    if (local && tail.starts_with(fused)) return plain + tail.substr(std::char_traits<char>::length(fused));
  }
  return tail;
}

class BucketJoiner {
 public:
  BucketJoiner(const std::map<std::string, StoredTensor>& buckets, Contents& out)
      : buckets_(buckets), out_(out), args_(out.arguments), layout_(read_layout(out.arguments)) {}

  std::string join() {
    std::string problem = find_unsupported();
    if (problem.empty()) problem = list_layers();
    for (int64_t stage = 0; stage < layout_.pp; ++stage) {
      for (int64_t tp = 0; tp < layout_.tp && problem.empty(); ++tp)
        problem = add_group(stage * layout_.tp + tp, list_shards(stage, tp, 0), false);
      if (layout_.experts == 0 || layout_.ep == 1) continue;
      for (int64_t ep = 0; ep < layout_.ep; ++ep) {
        for (int64_t etp = 0; etp < layout_.etp && problem.empty(); ++etp)
          problem = add_group((stage * layout_.ep + ep) * layout_.etp + etp, list_shards(stage, etp, ep), true);
      }
    }
    if (problem.empty()) out_.tensors.merge(states_);
    return problem;
  }

 private:
  std::string find_unsupported() const {
    for (const char* name : {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
                             "pipeline_model_parallel_layout", "mtp_num_layers"}) {
      if (args_.contains(name)) return base::concat("dp_reshardable is not supported with args.", name);
    }
    for (const char* name : {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"}) {
      if (is_true(args_, name)) return base::concat("dp_reshardable is not supported with args.", name);
    }
    const int64_t layers = integer_argument(args_, "num_layers", 0);
    for (const int64_t size :
         {layers, layout_.tp, layout_.pp, layout_.chunks, layout_.ep, layout_.etp, layout_.experts}) {
      if (size > kMost) return base::concat("the args have ", size, " layers, ranks or experts");
    }
    constexpr int64_t kMostRanks = 1 << 20;
    if (layout_.experts % layout_.ep != 0 || layout_.pp * std::max(layout_.tp, layout_.ep * layout_.etp) > kMostRanks)
      return base::concat("the args do not divide ", layout_.experts, " experts evenly, or have more than ",
                          kMostRanks, " ranks");
    return layers > 0 && layers % (layout_.pp * layout_.chunks) == 0
               ? ""
               : base::concat("args.num_layers = ", layers, " is not divided equally among pipeline stages");
  }

  // Fills layers_ with the tensors of each layer in the order of Megatron's modules.
  std::string list_layers() {
    const int64_t count = integer_argument(args_, "num_layers", 0);
    layers_.resize(static_cast<size_t>(count));
    static const std::string kPrefix = "decoder.layers.";
    for (const auto& [name, tensor] : out_.tensors) {
      if (!name.starts_with(kPrefix) || name.find("_extra_state") != std::string::npos ||
          name.ends_with("expert_bias"))
        continue;
      const char* const begin = name.data() + kPrefix.size();
      int64_t number = 0;
      const auto [stop, error] = std::from_chars(begin, name.data() + name.size(), number);
      const bool is_one = error == std::errc() && *stop == '.';
      LayerTensor item;
      item.tail = is_one ? std::string(stop + 1) : name.substr(kPrefix.size());
      item.tensor = &tensor;
      item.shape = is_one || tensor.shape.empty() ? tensor.shape : Dims(tensor.shape.begin() + 1, tensor.shape.end());
      if (!find_position(item)) return "the position of " + item.tail + " in a buffer is not known";
      const bool fits = is_one ? number >= 0 && number < count : !tensor.shape.empty() && tensor.shape[0] == count;
      if (!fits || item.shape.empty() || files::element_count(tensor.shape) > kMostElements)
        return name + " is of another model";
      for (int64_t layer = is_one ? number : 0; layer < (is_one ? number + 1 : count); ++layer)
        layers_[static_cast<size_t>(layer)].push_back(item);
    }
    for (std::vector<LayerTensor>& layer : layers_)
      std::sort(layer.begin(), layer.end(), [](const LayerTensor& one, const LayerTensor& other) {
        return std::pair(one.module, one.within) < std::pair(other.module, other.within);
      });
    return "";
  }

  bool find_position(LayerTensor& item) const {
    const std::string tail = module_tail(item.tail, is_local(args_));
    const auto module =
        std::find_if(std::begin(kOrder), std::end(kOrder), [&](const char* name) { return tail.starts_with(name); });
    if (module == std::end(kOrder)) return false;
    item.module = static_cast<size_t>(module - std::begin(kOrder));
    const std::string rest = tail.substr(std::char_traits<char>::length(*module));
    const auto within = std::find(std::begin(kModuleOrder), std::end(kModuleOrder), rest);
    item.within = static_cast<size_t>(within - std::begin(kModuleOrder));
    return within != std::end(kModuleOrder);
  }

  // Returns the parameters of each model chunk of a rank.
  std::vector<std::vector<Shard>> list_shards(int64_t stage, int64_t tp, int64_t ep) const {
    const auto layers = static_cast<int64_t>(layers_.size());
    const int64_t own = layers / (layout_.pp * layout_.chunks);
    std::vector<std::vector<Shard>> chunks;
    for (int64_t chunk = 0; chunk < layout_.chunks; ++chunk) {
      std::vector<Shard> shards;
      if (stage == 0 && chunk == 0) {
        add_named("embedding.word_embeddings.weight", tp, shards);
        add_named("embedding.position_embeddings.weight", tp, shards);
      }
      const int64_t first = chunk * (layers / layout_.chunks) + stage * own;
      for (int64_t layer = first; layer < first + own; ++layer) add_layer(layer, tp, ep, shards);
      if (stage == layout_.pp - 1 && chunk == layout_.chunks - 1) add_last(tp, shards);
      chunks.push_back(std::move(shards));
    }
    return chunks;
  }

  void add_last(int64_t tp, std::vector<Shard>& shards) const {
    for (const char* name : {"decoder.final_layernorm.weight", "decoder.final_layernorm.bias", "output_layer.weight"})
      add_named(name, tp, shards);
    if (!layout_.tied || layout_.pp == 1 || !out_.tensors.contains(kEmbedding)) return;
    add_named("embedding.word_embeddings.weight", tp, shards);  // the last stage has a copy
    shards.back().name = "output_layer.weight";
  }

  void add_named(const std::string& name, int64_t tp, std::vector<Shard>& shards) const {
    const auto found = out_.tensors.find(name);
    if (found != out_.tensors.end()) add_shard(name, found->second, found->second.shape, false, tp, shards);
  }

  void add_layer(int64_t layer, int64_t tp, int64_t ep, std::vector<Shard>& shards) const {
    std::vector<const LayerTensor*> experts;
    const std::string prefix = base::concat("decoder.layers.", layer, ".");
    const auto& items = layers_[static_cast<size_t>(layer)];
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].tail.starts_with(kExperts)) {
        add_shard(prefix + items[i].tail, *items[i].tensor, items[i].shape, false, tp, shards);
        continue;
      }
      experts.push_back(&items[i]);
      if (i + 1 == items.size() || !items[i + 1].tail.starts_with(kExperts))
        add_experts(prefix, experts, tp, ep, shards);
    }
  }

  // Grouped experts are stored per tensor, others per expert.
  void add_experts(const std::string& prefix, const std::vector<const LayerTensor*>& tensors, int64_t tp, int64_t ep,
                   std::vector<Shard>& shards) const {
    const int64_t local = layout_.experts / layout_.ep;
    const bool grouped = is_true(args_, "moe_grouped_gemm");
    const auto count = static_cast<int64_t>(tensors.size());
    for (int64_t i = 0; i < local * count; ++i) {
      const int64_t expert = ep * local + (grouped ? i % local : i / count);
      const LayerTensor& item = *tensors[static_cast<size_t>(grouped ? i / local : i % count)];
      const std::string name = base::concat(prefix, "mlp.experts.local_experts.", expert, ".",
                                            item.tail.substr(std::char_traits<char>::length(kExperts)));
      const Dims shape = item.shape.empty() ? item.shape : Dims(item.shape.begin() + 1, item.shape.end());
      add_shard(name, *item.tensor, shape, true, tp, shards);
    }
  }

  void add_shard(const std::string& name, const StoredTensor& tensor, const Dims& shape, bool is_expert, int64_t tp,
                 std::vector<Shard>& shards) const {
    const int64_t parts = is_expert ? layout_.etp : layout_.tp;
    Dims size = shape;
    const int split = name.ends_with("down_proj.weight") ? 0 : find_split(name);
    const bool is_divided = !name.ends_with("down_proj.weight") || is_stored_divided(tensor, shape);
    if (split >= 0 && is_divided && static_cast<size_t>(split) < size.size())
      size[static_cast<size_t>(split)] /= parts;
    shards.push_back(make_shard(args_, layout_, name, tensor.dtype, size, is_expert, tp));
  }

  // Whether the chunks of a weight have fewer rows than the weight.
  static bool is_stored_divided(const StoredTensor& tensor, const Dims& shape) {
    const size_t dim = tensor.shape.size() - shape.size();
    return std::any_of(tensor.chunks.begin(), tensor.chunks.end(),
                       [&](const Chunk& chunk) { return chunk.size[dim] < tensor.shape[dim]; });
  }

  // Adds the state in the buckets of one data-parallel group.
  std::string add_group(int64_t group, const std::vector<std::vector<Shard>>& chunks, bool experts) {
    const bool several = buckets_.begin()->first.starts_with(kChained);
    const std::vector<Buffer> buffers = list_buffers(chunks, layout_, experts);
    for (size_t i = 0; i < buffers.size(); ++i) {
      const std::string prefix = base::concat(several ? (experts ? "chained_1." : "chained_0.") : "",
                                              "optimizer.distributed.dp_group_idx_", group, ".gbuf_idx_", i, ".");
      if (const std::string problem = add_buffer(prefix, buffers[i].shards); !problem.empty()) return problem;
    }
    return "";
  }

  std::string add_buffer(const std::string& prefix, const std::vector<const Shard*>& shards) {
    std::map<std::string, std::map<int64_t, const StoredTensor*>> kinds;  // by kind and bucket
    for (auto at = buckets_.lower_bound(prefix); at != buckets_.end() && at->first.starts_with(prefix); ++at) {
      static const std::string kBucket = ".bucket_idx_";
      const size_t number = at->first.rfind(kBucket), kind = at->first.rfind('.');
      if (kind < number + kBucket.size()) return base::concat(at->first, " has no kind of state");
      int64_t bucket = -1;
      std::from_chars(at->first.data() + number + kBucket.size(), at->first.data() + kind, bucket);
      kinds[at->first.substr(kind + 1)][bucket] = &at->second;
    }
    for (const auto& [theirs, ours] :
         {std::pair{"param", "main"}, {"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}}) {
      std::vector<const StoredTensor*> tensors;
      for (const auto& [bucket, tensor] : kinds[theirs]) {
        if (tensor->shape.size() != 1) return base::concat("a bucket of ", prefix, " has several dimensions");
        tensors.push_back(tensor);
      }
      const std::string problem = add_kind(prefix, ours, shards, tensors);
      if (!problem.empty()) return problem;
    }
    return "";
  }

  std::string add_kind(const std::string& prefix, const char* kind, const std::vector<const Shard*>& shards,
                       const std::vector<const StoredTensor*>& tensors) {
    const auto is_end = [&](const Shard&, size_t bucket, int64_t at) {
      return bucket < tensors.size() && at == tensors[bucket]->shape[0];
    };
    const Buckets buckets = place_shards(shards, {is_end, is_end});
    bool equal = buckets.sizes.size() == tensors.size();
    for (size_t i = 0; equal && i < tensors.size(); ++i) equal = buckets.sizes[i] == tensors[i]->shape[0];
    if (!equal)
      return base::concat("the buckets of ", prefix, " do not have the sizes of the parameters in the args");
    for (size_t i = 0; i < shards.size(); ++i) {
      const Shard& shard = *shards[i];
      const StoredTensor& bucket = *tensors[buckets.places[i].bucket];
      if (shard.is_replica()) continue;
      StoredTensor& state = states_[base::concat(kind, "/", shard.name)];
      state.shape = shard.shape(), state.dtype = bucket.dtype;
      const int64_t begin = buckets.places[i].begin, end = begin + shard.count();
      for (const Chunk& chunk : bucket.chunks) {
        const int64_t first = chunk.offset[0], last = first + chunk.size[0];
        if (last <= begin || first >= end) continue;
        if (first < begin || last > end)
          return base::concat("a chunk of ", prefix, " crosses the border of ", shard.name);
        Chunk data = chunk;
        data.item_elements = last - first;
        add_chunks(shard, first - begin, last - begin, data, state);
      }
    }
    return "";
  }

  const std::map<std::string, StoredTensor>& buckets_;
  Contents& out_;
  const Arguments& args_;
  const Layout layout_;
  std::vector<std::vector<LayerTensor>> layers_;
  std::map<std::string, StoredTensor> states_;
};

}  // namespace

bool is_bucket(const std::string& name) {
  return name.find("optimizer.distributed.dp_group_idx_") != std::string::npos &&
         name.find(".bucket_idx_") != std::string::npos;
}

std::string join_buckets(const std::map<std::string, StoredTensor>& buckets, Contents& out) {
  return buckets.empty() ? "" : BucketJoiner(buckets, out).join();
}

}  // namespace metroplex::mcore
