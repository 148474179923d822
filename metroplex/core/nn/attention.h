// Self-attention with grouped queries (GQA), split over the tensor-parallel group by query groups: the projections,
// norms and rotary positions around core attention (core_attention.h). Rows of linear_qkv are ordered by query group,
// [its q heads, with attention_output_gate their gates, k, v], as in Megatron.
// Shapes: s sequence, b microbatch, h hidden size, n query heads and g query groups of this rank, d head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/model.h"
#include "nn/core_attention.h"
#include "nn/heads.h"
#include "nn/linear.h"
#include "nn/microbatch.h"
#include "nn/norm.h"
#include "nn/rope.h"
#include "nn/saved.h"

namespace metroplex::nn {

// Head counts of one rank. `head_dim` is the size of queries and keys, `v_head_dim` that of values.
struct HeadCounts {
  int64_t heads = 0, groups = 0, head_dim = 0, v_head_dim = 0;
};
HeadCounts head_counts(const config::Model& model, int tp);

struct AttentionSpec {
  std::string name;                 // <name>.linear_qkv, linear_proj, q_layernorm, k_layernorm
  int64_t layer = 0;                // global layer number: key of dropout and KV cache
  bool has_external_query = false;  // linear_q on a separate input, and linear_kv instead of linear_qkv
};

// The attention of a layer, between its norm and its residual addition.
class Attention {
 public:
  virtual ~Attention() = default;
  // Maps [s (/tp), b, h] to the same shape without the bias of linear_proj: the caller adds output_bias().
  // `query_sbh` is the input of linear_q; it is defined if and only if has_external_query is set.
  virtual at::Tensor forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh = {}) = 0;
  virtual Param* output_bias() = 0;
  virtual void collect_params(std::vector<Param*>& params) = 0;
};
// `rope` is null without rotary positions.
std::unique_ptr<Attention> make_attention(const AttentionSpec& spec, const config::Model& model,
                                          const LayerContext& context, std::shared_ptr<RopeTable> rope);

// Creates the parameter <name>.core_attention.softmax_offset [heads]; null unless softmax_type is learnable.
std::shared_ptr<Param> make_sinks(const AttentionSpec& spec, const config::Model& model, const LayerContext& context);
CoreSpec core_spec(const AttentionSpec& spec, const config::Model& model, const LayerContext& context);
LinearSpec output_projection(const AttentionSpec& spec, const config::Model& model);

class SelfAttention final : public Attention {
 public:
  SelfAttention(const AttentionSpec& spec, const config::Model& model, const LayerContext& context,
                std::shared_ptr<RopeTable> rope);

  at::Tensor forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh = {}) override;
  Param* output_bias() override { return proj_.skipped_bias(); }
  void collect_params(std::vector<Param*>& params) override;

 private:
  struct NormedSaved;
  struct AttentionSaved;
  Input run_core(const at::Tensor& fused, const at::Tensor& query, const Microbatch& batch);
  std::vector<at::Tensor> run_core_backward(const at::Tensor& dout, AttentionSaved& saved);
  struct Projected;
  Projected split(const at::Tensor& fused, const at::Tensor& query, const Positions& rows) const;
  std::vector<FusedHeads> normed_heads(const at::Tensor& q, const at::Tensor& k, const Positions& rows) const;
  Projected split_and_normalize(const at::Tensor& fused, const Positions& rows, AttentionSaved* saved) const;
  RopeTable::Angles angles_before_norm(const at::Tensor& x, const Positions& rows, RopeTable::Of what) const;
  Input apply_gate(const Input& core, const at::Tensor& gate, AttentionSaved* saved) const;
  at::Tensor normalize(const at::Tensor& raw, Norm& norm, const Positions& rows, NormSaved* saved);
  Input normalize_saving(const at::Tensor& raw, std::optional<Norm>& norm, const Positions& rows, NormedSaved* saved);
  at::Tensor backward_to_raw(const at::Tensor& dx, std::optional<Norm>& norm, const Positions& rows,
                             NormedSaved& saved);

  AttentionSpec spec_;
  device::Target target_;
  HeadCounts heads_;
  SavePolicy saving_;
  bool norms_after_rope_, has_gate_;
  bool fuses_norms_ = false;  // split_heads and join_heads normalize and rotate
  std::shared_ptr<RopeTable> rope_;
  std::optional<Linear> q_;  // only with has_external_query
  Linear fused_;             // linear_qkv or linear_kv
  std::optional<Norm> q_norm_, k_norm_;
  std::shared_ptr<Param> sinks_;
  CoreAttention core_;
  Linear proj_;
};

}  // namespace metroplex::nn
