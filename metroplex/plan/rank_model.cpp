#include "plan/rank_model.h"

#include <algorithm>

#include "base/error.h"
#include "config/family.h"

namespace metroplex::plan {
namespace {

using topology::Role;

class Builder {
 public:
  Builder(const config::Config& config, int64_t vocab_size) : c_(config), z_(memory_sizes(config, vocab_size)) {
    model_.border = z_.rows * z_.h * z_.residual;
    model_.loss = z_.wide;
  }

  void add_chunk(const StageLayers& layers) {
    model_.chunks.push_back({layers, {}});
    word_embedding_ = kNone;
    if (layers.has_embedding) embedding();
    for (int64_t layer = 0; layer < layers.num_layers; ++layer) add_layer(layers.first_layer + layer);
    if (!layers.has_loss) return;
    const bool top_query = config::family(c_.model.family).top_query;
    if (top_query) top_query_layer();
    head(!top_query);
  }
  RankModel take() { return std::move(model_); }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  RankBlock& begin_block() {
    model_.chunks.back().blocks.emplace_back();
    return block();
  }
  RankBlock& block() { return model_.chunks.back().blocks.back(); }
  RankParam& param(std::string name, std::vector<int64_t> shape, Role role = Role::weight) {
    block().params.push_back(model_.params.size());
    ++block().num_own;
    model_.params.push_back({std::move(name), std::move(shape), role, false, 1});
    return model_.params.back();
  }
  void norm_params(const std::string& name, int64_t width, Role role = Role::norm) {
    param(name + ".weight", {width}, role);
    if (c_.model.normalization != config::Normalization::RMSNorm) param(name + ".bias", {width}, Role::bias);
  }
  void linear_params(const std::string& name, int64_t out, int64_t in, bool bias) {
    param(name + ".weight", {out, in});
    if (bias) param(name + ".bias", {out}, Role::bias);
  }
  WorkRequest work_request() { return {&c_, z_, &model_.params, &block().params}; }
  bool remakes(const char* module) const { return c_.memory.recomputes(module); }

  void embedding();
  void layer_params(const std::string& name, bool query_from_outside);
  void add_layer(int64_t layer);
  void top_query_layer();
  void head(bool final_norm);
  void attention_params(const std::string& name, bool query_from_outside);
  void keep_norm_input(int64_t element);
  void keep_attention();
  void keep_mlp();

  const config::Config& c_;
  MemorySizes z_;
  RankModel model_;
  size_t word_embedding_ = kNone;
};

void Builder::embedding() {
  begin_block();
  word_embedding_ = model_.params.size();
  param("embedding.word_embeddings.weight", {z_.vocab, z_.h}, Role::embedding).shared = c_.model.tied();
  if (c_.model.position_embedding_type == config::PositionEmbedding::learned_absolute) {
    param("embedding.position_embeddings.weight", {c_.model.max_position_embeddings, z_.h}, Role::embedding);
  }
  block().work = embedding_work(work_request());
}

void Builder::attention_params(const std::string& name, bool query_from_outside) {
  const config::Model& m = c_.model;
  const bool bias = m.add_bias_linear || m.add_qkv_bias;
  if (query_from_outside) linear_params(name + ".linear_q", z_.n * z_.d, z_.h, bias);
  const int64_t width = ((query_from_outside ? 0 : z_.n) + 2 * z_.g) * z_.d;
  linear_params(name + (query_from_outside ? ".linear_kv" : ".linear_qkv"), width, z_.h, bias);
  if (m.qk_layernorm) {
    norm_params(name + ".q_layernorm", z_.d, Role::qk_norm);
    norm_params(name + ".k_layernorm", z_.d, Role::qk_norm);
  }
  param(name + ".linear_proj.weight", {z_.h, z_.n * z_.d});
  if (m.add_bias_linear) param(name + ".linear_proj.bias", {z_.h}, Role::bias);
}

// The input of a norm and its statistics, and its output, which the layer behind it keeps unless it is made again.
void Builder::keep_norm_input(int64_t element) {
  SavedBytes& saved = block().saved;
  saved.moved += z_.rows * z_.h * element;
  saved.stays += z_.rows * z_.moments * z_.wide;
  if (!remakes("layernorm")) saved.moved += z_.rows * z_.h * z_.element;
}

void Builder::keep_attention() {
  SavedBytes& saved = block().saved;
  const bool core = remakes("core_attn");
  saved.moved += z_.tokens * (z_.n + 2 * z_.g) * z_.d * z_.element;
  // The queries of a single group are a view of the product, which then stays beside copies of its keys and values.
  if (z_.g == 1 && z_.n > 1) saved.moved += z_.tokens * 2 * z_.g * z_.d * z_.element;
  if (c_.model.qk_layernorm) {
    saved.stays += z_.tokens * (z_.n + z_.g) * z_.moments * z_.wide;
    if (!core) saved.moved += z_.tokens * (z_.n + z_.g) * z_.d * z_.element;
  }
  if (core) return;
  saved.moved += z_.tokens * z_.n * z_.d * z_.element;
  saved.moved += z_.tokens * z_.n * z_.wide * (c_.model.attention_dropout > 0 ? z_.s : 1);
}

void Builder::keep_mlp() {
  if (remakes("mlp")) return;
  const int64_t width = z_.tokens * z_.f * z_.element;
  block().saved.moved += width * (c_.model.gated_linear_unit ? 2 : 1);
  if (!remakes("activation")) block().saved.moved += width;
}

void Builder::layer_params(const std::string& name, bool query_from_outside) {
  norm_params(name + ".input_layernorm", z_.h);
  attention_params(name + ".self_attention", query_from_outside);
  norm_params(name + ".pre_mlp_layernorm", z_.h);
  const bool bias = c_.model.add_bias_linear;
  linear_params(name + ".mlp.linear_fc1", z_.f * (c_.model.gated_linear_unit ? 2 : 1), z_.h, bias);
  param(name + ".mlp.linear_fc2.weight", {z_.h, z_.f});
  if (bias) param(name + ".mlp.linear_fc2.bias", {z_.h}, Role::bias);
}

void Builder::add_layer(int64_t layer) {
  const std::string name = "decoder.layers." + std::to_string(layer);
  begin_block().is_layer = true;
  layer_params(name, false);
  block().input = model_.border;
  keep_norm_input(z_.residual);
  keep_attention();
  keep_norm_input(z_.residual);
  keep_mlp();
  block().work = layer_work(work_request());
}

void Builder::top_query_layer() {
  const std::string name = "decoder.top_query_layer";
  begin_block();
  norm_params("decoder.final_layernorm", z_.h);
  param("decoder.top_query_embeddings.weight", {c_.model.max_position_embeddings, z_.h});
  layer_params(name, true);
  block().input = model_.border;
  SavedBytes& saved = block().saved;
  saved.moved += model_.border + z_.rows * z_.h * z_.element;  // input of the final norm; the rows of the queries
  saved.stays += z_.rows * z_.moments * z_.wide;
  keep_norm_input(z_.element);
  keep_attention();
  keep_norm_input(z_.element);
  keep_mlp();
  block().work = top_query_work(work_request());
}

void Builder::head(bool final_norm) {
  begin_block();
  if (final_norm) norm_params("decoder.final_layernorm", z_.h);
  if (!c_.model.tied()) {
    param("output_layer.weight", {z_.vocab, z_.h}, Role::output);
  } else if (word_embedding_ != kNone) {
    block().params.push_back(word_embedding_);
    model_.params[word_embedding_].uses_per_microbatch = 2;
  } else {
    param("embedding.word_embeddings.weight", {z_.vocab, z_.h}, Role::embedding).shared = true;
  }
  block().input = model_.border;
  if (final_norm) {
    keep_norm_input(z_.residual);
  } else {
    block().saved.moved += z_.rows * z_.h * z_.element;
  }
  block().saved.stays += z_.tokens * (z_.vocab * z_.element + z_.wide + 8);  // logits, logsumexp, targets
  block().work = head_work(work_request(), final_norm);
}

}  // namespace

MemorySizes memory_sizes(const config::Config& c, int64_t vocab_size) {
  const config::Model& m = c.model;
  MemorySizes z{};
  z.tp = c.parallel.tp();
  z.s = c.train.seq_length;
  z.b = c.train.micro_batch_size;
  z.h = m.hidden_size;
  z.n = m.num_attention_heads / z.tp;
  z.g = (m.num_query_groups > 0 ? m.num_query_groups : m.num_attention_heads) / z.tp;
  z.d = m.kv_channels > 0 ? m.kv_channels : z.h / m.num_attention_heads;
  z.f = m.ffn_hidden_size / z.tp;
  z.vocab = config::padded_vocab_size(vocab_size, m.make_vocab_size_divisible_by, z.tp) / z.tp;
  z.tokens = z.s * z.b;
  z.rows = c.parallel.sequence_parallel ? z.tokens / z.tp : z.tokens;
  z.element = element_bytes(c.precision.params_dtype);
  z.wide = wide_bytes(c.precision.params_dtype);
  const bool as_params = c.precision.main_grads_dtype == config::MainGradsDtype::params ||
                         c.precision.params_dtype == config::ParamsDtype::fp64;
  z.gradient = as_params ? z.element : 4;
  z.residual = c.precision.fp32_residual_connection && c.precision.half() ? 4 : z.element;
  z.moments = m.normalization == config::Normalization::RMSNorm ? 1 : 2;
  return z;
}

int64_t RankParam::numel() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

int64_t element_bytes(config::ParamsDtype dtype) {
  if (dtype == config::ParamsDtype::fp64) return 8;
  return dtype == config::ParamsDtype::fp32 ? 4 : 2;
}

int64_t wide_bytes(config::ParamsDtype dtype) { return std::max<int64_t>(4, element_bytes(dtype)); }

RankModel rank_model(const config::Config& config, int64_t pp_rank, int64_t vocab_size) {
  Builder builder(config, vocab_size);
  for (const StageLayers& layers : split_stages(config.parallel, config.model.num_layers)) {
    if (layers.pp_rank == pp_rank) builder.add_chunk(layers);
  }
  return builder.take();
}

}  // namespace metroplex::plan
