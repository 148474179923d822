// Self-attention with grouped queries (GQA), split over the tensor-parallel group by query groups. Rows of
// linear_qkv: for each query group [its q heads, k, v]. Core attention takes causal and document masks and
// dropout. Shapes: n heads and g groups of this rank, d head size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/model.h"
#include "nn/core_attention.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/microbatch.h"
#include "nn/norm.h"
#include "nn/rope.h"
#include "nn/saved.h"

namespace metroplex::nn {

// Keys and values of the tokens seen so far, a pair a layer. The owner advances `length` by the number of tokens
// after the last segment of a forward has run; room grows on demand.
struct KvCache {
  struct Layer {
    at::Tensor k, v;  // [capacity, b, g, d]
  };
  int64_t length = 0;
  std::map<int64_t, Layer> layers;
};

// Head counts of one rank.
struct HeadCounts {
  int64_t heads = 0, groups = 0, head_dim = 0;
};
HeadCounts head_counts(const config::Model& model, int tp);

struct AttentionSpec {
  std::string name;                 // <name>.linear_qkv, linear_proj, q_layernorm, k_layernorm
  int64_t layer = 0;                // global number: key of dropout and cache
  bool query_from_outside = false;  // linear_q over another input and linear_kv instead of linear_qkv
};

class SelfAttention {
 public:
  // `rope` is null without rotary positions.
  SelfAttention(const AttentionSpec& spec, const config::Model& model, const LayerContext& context,
                std::shared_ptr<RopeTable> rope);

  // [s (/tp), b, h] -> the same without the bias of linear_proj: the caller adds output_bias(). `query_sbh` is the
  // source of the queries where the spec says so. Where the core is recomputed its result is made again.
  at::Tensor forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh = {});
  Param* output_bias() { return proj_.bias(); }
  void collect_params(std::vector<Param*>& params);

 private:
  struct AttentionSaved;
  Input core(const at::Tensor& fused, const at::Tensor& query, const Microbatch& batch);
  CoreInputs normalize_and_rotate(const CoreInputs& raw, const Positions& rows, AttentionSaved* saved);
  void keep(const CoreInputs& raw, const CoreSaved& core, AttentionSaved& saved) const;
  std::vector<at::Tensor> core_backward(const at::Tensor& dout, const Microbatch& batch, AttentionSaved& saved);
  CoreInputs split(const at::Tensor& fused, const at::Tensor& query, bool keeps) const;
  void append_to_cache(CoreInputs& in, KvCache& cache) const;

  AttentionSpec spec_;
  HeadCounts heads_;
  DropoutKey dropout_;
  int64_t first_head_ = 0;
  SavePolicy saving_;
  cuda::Target target_;
  std::shared_ptr<RopeTable> rope_;
  std::optional<ColumnParallelLinear> q_;  // query_from_outside
  ColumnParallelLinear fused_;             // linear_qkv or linear_kv
  std::optional<Norm> q_norm_, k_norm_;
  RowParallelLinear proj_;
};

}  // namespace metroplex::nn
