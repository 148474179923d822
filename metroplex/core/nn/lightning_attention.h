// Lightning attention, the linear attention of MiniMax-01 (arXiv:2501.08313). in_proj yields [q, k, v] of each head,
// to which silu is applied, and output gates. The recurrence is that of Mamba-2 (state_space.h) with a constant decay
// per head and layer (config/lightning.h). The results are normalized over all heads and multiplied by the sigmoid of
// the gates. Heads are split over tp, and the ranks of cp exchange rows for heads (head_exchange.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "config/model.h"
#include "nn/attention.h"
#include "nn/head_exchange.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/state_space.h"

namespace metroplex::nn {

class LightningAttention final : public Attention {
 public:
  // Parameters: <name>.in_proj [q, k, v of each head; gates], out_norm, out_proj.
  LightningAttention(const AttentionSpec& spec, const config::Model& model, const LayerContext& context);

  at::Tensor forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh = {}) override;
  Param* output_bias() override { return nullptr; }
  void collect_params(std::vector<Param*>& params) override;

 private:
  struct Mixed;
  Mixed mix(const at::Tensor& projected, const Microbatch& batch) const;
  at::Tensor gates(const at::Tensor& projected) const;
  at::Tensor run_core(const at::Tensor& projected, const Microbatch& batch) const;
  at::Tensor apply_norm_and_gates(const at::Tensor& y, const at::Tensor& projected) const;
  Input run(const at::Tensor& projected, const Microbatch& batch);
  at::Tensor backward(const at::Tensor& dout, const at::Tensor& projected, const at::Tensor& y,
                      const Microbatch& batch);

  AttentionSpec spec_;
  int64_t head_dim_;
  int64_t width_;  // channels of this tensor-parallel rank
  int64_t heads_;  // of this rank, for the whole sequence
  int64_t chunk_;
  SavePolicy saving_;
  SequenceExchange inputs_, results_;
  at::Tensor log_decays_;  // [heads], negative
  Linear in_proj_;
  Norm out_norm_;
  Linear out_proj_;
};

}  // namespace metroplex::nn
