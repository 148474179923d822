// Bytes of the fullest rank by Megatron's report_theoretical_memory. 18 bytes per parameter: bf16 weight and fp32
// gradient 6, fp32 weight and two moments 12, the latter sharded over dp with a distributed optimizer. Activations of
// one transformer layer after Korthikanti et al. (arXiv:2205.05198, table 2), times the microbatches in flight. A
// first estimate: no workspace, no fragmentation, no communication buffers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/error.h"
#include "support/megatron_flops.h"

namespace metroplex::test {

struct MemoryLayout {
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t vpp = 0;  // 0: not interleaved
  int64_t dp = 1;
  int64_t ep = 1, etp = 1;  // routed experts are sharded over both
  int64_t expert_dp = 1;    // world / (etp * ep * pp)
  bool distributed_optimizer = false;
  int64_t micro_batch_size = 1;
  std::optional<int64_t> num_microbatches = std::nullopt;  // none: enough to fill the pipeline
};

struct ParameterCount {
  double sharded = 0;
  double replicated = 0;  // norms, router, latent projections: full copy on every tp rank
  double experts = 0;     // routed experts, sharded over ep and etp
  double total() const { return sharded + replicated + experts; }
};
struct ModelParameters {
  ParameterCount block;  // all transformer layers and the last norm
  ParameterCount mtp;
  double embedding = 0;  // one vocabulary table
  double total = 0;      // includes the output table if it is not tied
};

inline double norm_parameters(const MegatronShape& shape) { return shape.rms_norm ? 1 : 2; }

inline double attention_parameters(const MegatronShape& shape) {
  const double hidden = as_double(shape.hidden_size), heads = as_double(shape.num_attention_heads);
  if (!shape.latent) {
    const double query = as_double(shape.kv_channels) * heads;
    return 2 * hidden * query * (1 + as_double(shape.num_query_groups) / heads);
  }
  const plan::LatentShape& mla = *shape.latent;
  const double norm = norm_parameters(shape);
  const double qk_dim = as_double(mla.qk_head_dim + mla.qk_pos_emb_head_dim);
  const double query =
      mla.q_lora_rank > 0 ? as_double(mla.q_lora_rank) * (hidden + heads * qk_dim + norm) : hidden * heads * qk_dim;
  const double key_value =
      as_double(mla.kv_lora_rank) * (hidden + heads * as_double(mla.qk_head_dim + mla.v_head_dim) + norm);
  return query + key_value + hidden * as_double(mla.qk_pos_emb_head_dim) + heads * as_double(mla.v_head_dim) * hidden;
}

inline ParameterCount operator+(const ParameterCount& a, const ParameterCount& b) {
  return {a.sharded + b.sharded, a.replicated + b.replicated, a.experts + b.experts};
}
inline ParameterCount operator*(const ParameterCount& count, double n) {
  return {count.sharded * n, count.replicated * n, count.experts * n};
}

inline ParameterCount dense_layer(const MegatronShape& shape) {
  const double hidden = as_double(shape.hidden_size);
  return {attention_parameters(shape) + feed_forward(shape, hidden, as_double(shape.ffn_hidden_size)),
          2 * hidden * norm_parameters(shape), 0};
}

inline ParameterCount moe_layer(const MegatronShape& shape, const MegatronExperts& experts) {
  const double hidden = as_double(shape.hidden_size), number = as_double(experts.num_experts);
  const double input = experts.latent_size > 0 ? as_double(experts.latent_size) : hidden;
  ParameterCount count;
  count.sharded =
      attention_parameters(shape) + feed_forward(shape, hidden, as_double(experts.shared_ffn_hidden_size));
  count.replicated = 2 * hidden * norm_parameters(shape) + hidden * number + (shape.linear_bias ? number : 0);
  if (experts.latent_size > 0) count.replicated += 2 * hidden * input;
  if (experts.shared_expert_gate && experts.shared_ffn_hidden_size > 0) count.replicated += hidden;
  count.experts = feed_forward(shape, input, as_double(experts.ffn_hidden_size)) * number;
  return count;
}

// Activations of the microbatches in flight on the first stage; `bytes` is for one microbatch over all layers.
inline double in_flight(const MemoryLayout& layout, double bytes) {
  const double pp = as_double(layout.pp);
  if (layout.vpp > 0) return bytes * (1 + (pp - 1) / (pp * as_double(layout.vpp)));
  if (layout.pp > 1 && layout.num_microbatches) {
    return bytes * std::min(1.0, as_double(*layout.num_microbatches) / pp);
  }
  return bytes;
}

// Token ids and the embedding's dropout, for pp microbatches.
inline double embedding_activations(const MegatronShape& shape, const MemoryLayout& layout) {
  const double tokens = as_double(shape.seq_length) * as_double(layout.micro_batch_size);
  return (8 * tokens + tokens * as_double(shape.hidden_size)) * as_double(layout.pp);
}

inline ModelParameters count_parameters(const MegatronShape& shape) {
  const double hidden = as_double(shape.hidden_size);
  const ParameterCount dense = dense_layer(shape);
  ParameterCount moe;
  int64_t moe_layers = 0;
  bool mtp_is_moe = false;
  if (shape.all_experts) {
    const auto& pattern = shape.all_experts->layer_is_moe;
    MPX_CHECK(static_cast<int64_t>(pattern.size()) == shape.num_layers, "test", "the moe pattern names ",
              pattern.size(), " layers, model.num_layers is ", shape.num_layers);
    moe = moe_layer(shape, *shape.all_experts);
    moe_layers = std::count(pattern.begin(), pattern.end(), true);
    mtp_is_moe = !pattern.empty() && pattern.back();
  }
  ModelParameters count;
  count.block = dense * as_double(shape.num_layers - moe_layers) + moe * as_double(moe_layers) +
                ParameterCount{0, norm_parameters(shape) * hidden, 0};
  count.mtp = (mtp_is_moe ? moe : dense) * as_double(shape.num_mtp_layers);
  count.embedding = hidden * as_double(shape.padded_vocab_size);
  count.total = count.block.total() + count.mtp.total() + count.embedding * (shape.tied_embedding ? 1 : 2);
  return count;
}

inline double weight_and_optimizer_bytes(const MegatronShape& shape, const MemoryLayout& layout) {
  const ModelParameters count = count_parameters(shape);
  const int num_tables = !shape.tied_embedding && layout.pp == 1 ? 2 : 1;
  const ParameterCount stage = count.block * (1 / as_double(layout.pp)) + count.mtp;
  const double dense = (stage.sharded + count.embedding * num_tables) / as_double(layout.tp) + stage.replicated;
  const auto bytes_per_parameter = [&](int64_t dp) {
    return layout.distributed_optimizer ? 6 + 12 / as_double(dp) : 18;
  };
  return dense * bytes_per_parameter(layout.dp) +
         stage.experts / as_double(layout.ep * layout.etp) * bytes_per_parameter(layout.expert_dp);
}

// With sequence parallelism and selective recompute of the core attention.
inline double activation_bytes(const MegatronShape& shape, const MemoryLayout& layout) {
  const double hidden = as_double(shape.hidden_size);
  const double elements = as_double(shape.seq_length) * as_double(layout.micro_batch_size) * hidden;
  const double layer = elements * (18 + 4 * as_double(shape.ffn_hidden_size) / hidden);
  double bytes = in_flight(layout, layer * as_double(shape.num_layers) + embedding_activations(shape, layout));
  if (layout.pp == 1) bytes += elements * 4 * (1 + as_double(shape.padded_vocab_size) / hidden);
  return bytes / as_double(layout.tp);
}

// Without sequence parallelism; adds 5 % for tensors that the formula omits.
inline double activation_bytes_without_sp(const MegatronShape& shape, const MemoryLayout& layout) {
  const double tokens = as_double(shape.seq_length) * as_double(layout.micro_batch_size);
  const double elements = tokens * as_double(shape.hidden_size), tp = as_double(layout.tp);
  const double layer = elements * (10 + 24 / tp);
  double bytes = in_flight(layout, layer * as_double(shape.num_layers) + embedding_activations(shape, layout));
  if (layout.pp == 1) bytes += 2 * (tokens * as_double(shape.padded_vocab_size) / tp + elements);
  constexpr double kLeftOut = 1.05;
  return bytes * kLeftOut;
}

}  // namespace metroplex::test
