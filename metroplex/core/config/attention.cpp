#include "config/attention.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::config {
namespace {

struct AttentionRow {
  AttentionBy by;
  bool halves, floats, windows, documents;
  bool (*takes)(const AttentionCase& c);
};

bool same_sizes(const AttentionCase& c) { return c.head_dim == c.v_head_dim && c.head_dim <= 256; }
bool has_flash_backward(const AttentionCase& c) {
  const bool small = c.capability == 86 || c.capability == 89 || c.capability == 120 || c.capability == 121;
  return same_sizes(c) && !(small && c.head_dim > 192 && c.head_dim <= 224);
}
bool cudnn_takes(const AttentionCase& c) {
  const bool sizes = std::max(c.head_dim, c.v_head_dim) <= 128 || (c.head_dim == 192 && c.v_head_dim == 128);
  return sizes && (c.capability == 90 || c.capability / 10 == 10) && c.keys != 1 && !c.deterministic;
}
bool cudnn_is_quicker(const AttentionCase& c) { return cudnn_takes(c) && c.queries % 128 == 0 && c.keys % 128 == 0; }

constexpr AttentionRow kRows[] = {{AttentionBy::cudnn, true, false, false, false, cudnn_is_quicker},
                                  {AttentionBy::flash, true, false, true, true, has_flash_backward},
                                  {AttentionBy::memory_efficient, false, true, false, false, same_sizes},
                                  {AttentionBy::cudnn, true, false, false, false, cudnn_takes}};

const char* why_none(const AttentionCase& c) {
  if (c.documents) return "documents that do not attend to each other, which only flash attention supports";
  if (c.window) return "windows, which only flash attention supports";
  AttentionCase any_order = c;
  any_order.deterministic = false;
  if (c.deterministic && cudnn_takes(any_order)) return "values with another head size than keys, in a fixed order";
  if (c.head_dim != c.v_head_dim) return "values with another head size than keys";
  if (c.head_dim > 256) return "a head size above 256";
  return "a head size without a backward of flash attention on this GPU";
}

}  // namespace

AttentionChoice gpu_attention(const AttentionCase& c) {
  const bool half = is_half(c.dtype), single = c.dtype == ParamsDtype::fp32;
  if (c.dropout) return {AttentionBy::own, "dropout that is a function of the position"};
  if (!c.plain_mask) return {AttentionBy::own, "a mask that is not causal from the first row on"};
  if (c.capped) return {AttentionBy::own, "capped scores"};
  if (!half && !single) return {AttentionBy::own, "float64"};
  if (c.sinks && single) return {AttentionBy::own, "sinks in fp32"};
  if (c.head_dim % 8 != 0 || c.v_head_dim % 8 != 0)
    return {AttentionBy::own, "a head size that is not a multiple of 8"};
  for (const AttentionRow& row : kRows) {
    const bool type = half ? row.halves : row.floats;
    if (type && (row.windows || !c.window) && (row.documents || !c.documents) && row.takes(c)) return {row.by};
  }
  return {AttentionBy::own, why_none(c)};
}

static AttentionCase attention_case(const Config& config, int capability) {
  const Model& m = config.model;
  AttentionCase c{config.precision.params_dtype};
  c.head_dim = c.v_head_dim =
      m.kv_channels > 0 ? m.kv_channels : m.hidden_size / std::max<int64_t>(1, m.num_attention_heads);
  if (m.multi_latent_attention) c.head_dim = m.qk_head_dim + m.qk_pos_emb_head_dim, c.v_head_dim = m.v_head_dim;
  c.capped = m.attn_logit_softcapping > 0;
  c.sinks = m.softmax_type != SoftmaxType::vanilla;
  c.window = m.has_window();
  c.dropout = m.attention_dropout > 0;
  c.documents = config.data.reset_attention_mask;
  c.capability = capability;
  c.queries = c.keys = config.train.seq_length;
  c.deterministic = config.run.deterministic_mode;
  c.plain_mask = config.parallel.cp() == 1 ||
                 is_half(c.dtype);  // with context parallelism the operators support only fp16 and bf16
  if (config.parallel.hybrid_context_parallel) c.plain_mask = false;
  if (m.attention_chunk_size > 0 && (c.documents || !is_half(c.dtype))) c.plain_mask = false;
  return c;
}

std::string own_attention(const Config& config, int capability) {
  const Model& m = config.model;
  const AttentionCase c = attention_case(config, capability);
  const AttentionChoice choice = gpu_attention(c);
  if (choice.by != AttentionBy::own) return "";
  const bool single = c.dtype == ParamsDtype::fp32;
  std::string key = base::concat("head size ", c.head_dim);
  if (single && c.window) key = base::concat("model.window_size = ", m.window_size);
  if (single && c.documents) key = "data.reset_attention_mask = true";
  AttentionCase any_order = c;
  any_order.deterministic = false;
  if (gpu_attention(any_order).by != AttentionBy::own) key = "run.deterministic_mode = true";
  if (!c.plain_mask)
    key = base::concat("parallel.context_parallel_size = ", config.parallel.cp(),
                       " in fp32; precision.params_dtype = bf16 avoids it");
  if (m.attention_chunk_size > 0 && (c.documents || single))
    key = base::concat("model.attention_chunk_size = ", m.attention_chunk_size);
  if (c.dtype == ParamsDtype::fp64) key = "precision.params_dtype = fp64";
  if (c.sinks && single) key = base::concat("model.softmax_type = ", m.softmax_type.text());
  if (c.capped) key = base::concat("model.attn_logit_softcapping = ", m.attn_logit_softcapping);
  if (config.parallel.hybrid_context_parallel) key = "parallel.hybrid_context_parallel = true";
  if (c.dropout) key = base::concat("model.attention_dropout = ", m.attention_dropout);
  return base::concat("attention uses metroplex's own kernels, which are slower than libtorch's: ", choice.why, " (",
                      key, ")");
}

DocumentBound document_bound(const Config& config, int capability) {
  const AttentionCase c = attention_case(config, capability);
  // For one query per sample the operator would reorder heads.
  if (!c.documents || config.train.seq_length == 1 || gpu_attention(c).by == AttentionBy::own) return {};
  const int64_t given = config.data.max_documents_per_sample;
  return {given > 0 ? given : (config.train.seq_length + kRowsOfADocument - 1) / kRowsOfADocument,
          config.train.cuda_graph_impl != CudaGraphImpl::none};
}

}  // namespace metroplex::config
