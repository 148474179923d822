// Gated DeltaNet (arXiv:2412.06464; Megatron's gated_delta_net): linear attention by the gated delta rule. A
// projection computes queries, keys, values, output gates z, write strengths and decays. A short convolution mixes
// neighboring tokens of the first three; queries and keys are then divided by their L2 norms. Each head's result is
// normalized and multiplied by silu(z). Heads are split over tp, and the ranks of cp exchange rows for heads
// (head_exchange.h).
#pragma once

#include <memory>
#include <vector>

#include "nn/attention.h"
#include "nn/delta_rule.h"
#include "nn/head_exchange.h"
#include "nn/short_convolution.h"

namespace metroplex::nn {

class GatedDeltaNet final : public Attention {
 public:
  // Parameters: <name>.in_proj [q; k; v; z; beta; alpha], conv1d, dt_bias, A_log, out_norm, out_proj.
  GatedDeltaNet(const AttentionSpec& spec, const config::Model& model, const LayerContext& context);

  at::Tensor forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh = {}) override;
  Param* output_bias() override { return nullptr; }
  void collect_params(std::vector<Param*>& params) override;

 private:
  // Sizes of a rank between the exchanges.
  struct Sizes {
    int64_t key_heads, heads, key_dim, value_dim;
    Sizes(const config::Model& model, int64_t ranks);
    int64_t keys() const { return key_heads * key_dim; }
    int64_t values() const { return heads * value_dim; }
    std::vector<int64_t> sections() const { return {keys(), keys(), values(), values(), heads, heads}; }
  };
  struct Mixed;
  Mixed mix(const at::Tensor& projected, const Microbatch& batch, at::Tensor* cached) const;
  Input run_core(const at::Tensor& projected, const Microbatch& batch);
  at::Tensor run(const at::Tensor& projected, const Microbatch& batch) const;
  at::Tensor backward(const at::Tensor& dout, const at::Tensor& projected, const Microbatch& batch);

  AttentionSpec spec_;
  Sizes sizes_;
  SavePolicy saving_;
  device::Target target_;
  SequenceExchange inputs_, results_, heads_;
  Linear in_proj_;
  ShortConvolution convolution_;
  Param dt_bias_, a_log_;
  Norm out_norm_;
  Linear out_proj_;
};

}  // namespace metroplex::nn
