#include "config/attention.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::config {
namespace {

struct AttentionRow {
  AttentionBy by;
  bool halves, floats;
  int64_t most_head_dim;
  bool (*runs)(const AttentionCase& c);
};

bool everywhere(const AttentionCase&) { return true; }
bool has_flash_backward(const AttentionCase& c) {
  const bool small = c.capability == 86 || c.capability == 89 || c.capability == 120 || c.capability == 121;
  return !(small && attention_depends_on_gpu(c.head_dim));
}

constexpr AttentionRow kRows[] = {{AttentionBy::flash, true, false, 256, has_flash_backward},
                                  {AttentionBy::memory_efficient, false, true, 256, everywhere}};

}  // namespace

AttentionChoice gpu_attention(const AttentionCase& c) {
  const bool half = c.dtype == ParamsDtype::bf16 || c.dtype == ParamsDtype::fp16,
             single = c.dtype == ParamsDtype::fp32;
  if (c.documents) return {AttentionBy::own, "documents that do not see each other"};
  if (c.dropout) return {AttentionBy::own, "dropout that is a function of the position"};
  if (!c.plain_mask) return {AttentionBy::own, "a mask that is not causal from the first row on"};
  if (!c.plain_scores) return {AttentionBy::own, "windows, capped scores or sinks"};
  if (!half && !single) return {AttentionBy::own, "float64"};
  if (c.head_dim != c.v_head_dim) return {AttentionBy::own, "values of another head size than keys"};
  if (c.head_dim % 8 != 0) return {AttentionBy::own, "a head size that 8 does not divide"};
  for (const AttentionRow& row : kRows) {
    if ((half ? row.halves : row.floats) && c.head_dim <= row.most_head_dim && row.runs(c)) return {row.by};
  }
  if (c.head_dim > 256) return {AttentionBy::own, "a head size above 256"};
  return {AttentionBy::own, "a head size without a backward of flash attention on this GPU"};
}

// What of a model keeps scores from being plain, in words; empty: nothing.
static std::string not_plain(const Model& m) {
  if (m.has_window()) return base::concat("model.window_size = ", m.window_size);
  if (m.attn_logit_softcapping > 0) return base::concat("model.attn_logit_softcapping = ", m.attn_logit_softcapping);
  return m.softmax_type == SoftmaxType::vanilla ? "" : base::concat("model.softmax_type = ", m.softmax_type.text());
}

std::string own_attention(const Config& config, int capability) {
  const Model& m = config.model;
  AttentionCase c{config.precision.params_dtype};
  c.head_dim = c.v_head_dim =
      m.kv_channels > 0 ? m.kv_channels : m.hidden_size / std::max<int64_t>(1, m.num_attention_heads);
  if (m.multi_latent_attention) c.head_dim = m.qk_head_dim + m.qk_pos_emb_head_dim, c.v_head_dim = m.v_head_dim;
  const std::string scores = not_plain(m);
  c.plain_scores = scores.empty();
  c.dropout = m.attention_dropout > 0;
  c.documents = config.data.reset_attention_mask;
  c.capability = capability;
  const AttentionChoice choice = gpu_attention(c);
  if (choice.by != AttentionBy::own) return "";
  const std::string key = c.documents       ? "data.reset_attention_mask = true"
                          : c.dropout       ? base::concat("model.attention_dropout = ", m.attention_dropout)
                          : !scores.empty() ? scores
                          : c.dtype == ParamsDtype::fp64 ? "precision.params_dtype = fp64"
                                                         : base::concat("head size ", c.head_dim);
  return base::concat("attention is by kernels of our own, slower than libtorch's: ", choice.why, " (", key, ")");
}

}  // namespace metroplex::config
