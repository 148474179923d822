// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), split over the tensor-parallel group by heads. Keys
// and values are projected up from a low-rank latent, which is replicated on every rank; so are queries if
// q_lora_rank is set. Each head consists of a part without positions and a rotated part; the rotated key is shared by
// all heads.
// Names are Megatron's: linear_q_proj, or linear_q_down_proj, q_layernorm and linear_q_up_proj (per head [part
// without positions; rotated part]); linear_kv_down_proj ([latent; rotated key]), kv_layernorm, linear_kv_up_proj
// (per head [key; value]); linear_proj.
// Shapes: s sequence, b microbatch, h hidden size, n heads of this rank, d head size of the part without positions, p
// of the rotated part, dv of values.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "nn/attention.h"

namespace metroplex::nn {

class LatentAttention final : public Attention {
 public:
  LatentAttention(const AttentionSpec& spec, const config::Model& model, const LayerContext& context,
                  std::shared_ptr<RopeTable> rope);

  at::Tensor forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh = {}) override;
  Param* output_bias() override { return proj_.skipped_bias(); }
  void collect_params(std::vector<Param*>& params) override;

 private:
  struct Projections;
  at::Tensor gather_for_heads(const at::Tensor& shared) const;
  CoreInputs heads(const Projections& in, const Positions& rows) const;
  std::function<CoreInputs()> recomputed_heads(const Input& q_in, const Input& kv_in, const at::Tensor& k_rotated,
                                               const Microbatch& batch);
  Input run_core(const Projections& in, const std::function<CoreInputs()>& again, const Microbatch& batch);
  std::vector<at::Tensor> run_core_backward(const at::Tensor& dout, const CoreSaved& saved);

  AttentionSpec spec_;
  int64_t plain_dim_, rotated_dim_, v_dim_, latent_dim_, heads_;
  comm::Group sp_, tp_reduce_;
  SavePolicy saving_;
  std::shared_ptr<RopeTable> rope_;
  std::optional<Linear> q_down_;
  std::optional<Norm> q_norm_, kv_norm_;
  Linear q_;  // linear_q_proj or linear_q_up_proj
  Linear kv_down_;
  Linear kv_up_;
  std::shared_ptr<Param> sinks_;
  CoreAttention core_;
  Linear proj_;
};

}  // namespace metroplex::nn
