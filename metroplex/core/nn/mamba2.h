// Mamba-2 (arXiv:2405.21060) as the mixer of a layer. in_proj yields [z, x, B, C, dt], each split over tp by heads or
// groups of heads. A short convolution with silu over x, B and C comes before the recurrence (state_space.h), and a
// norm of the result times silu(z) before out_proj. With context parallelism, a rank computes convolution and
// recurrence of the whole sequence for its share of the groups. Parameter names and rows are those of Megatron.
// All parameters have the type of the model; the recurrence is computed in at least fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "config/model.h"
#include "nn/attention.h"
#include "nn/gated_norm.h"
#include "nn/head_exchange.h"
#include "nn/linear.h"
#include "nn/short_convolution.h"
#include "nn/state_space.h"

namespace metroplex::nn {

class Mamba2 final : public Attention {
 public:
  Mamba2(const AttentionSpec& spec, const config::Model& model, const LayerContext& context);

  at::Tensor forward(const Input& in, const Microbatch& batch, const at::Tensor& query_sbh = {}) override;
  Param* output_bias() override { return out_proj_.skipped_bias(); }
  void collect_params(std::vector<Param*>& params) override;

 private:
  struct Projected {
    at::Tensor z, rest;  // [s, b, ...]; rest: x, B, C and dt
  };
  struct Convolved;
  Projected split(const at::Tensor& fused) const;
  Convolved convolve(const at::Tensor& rest, const Microbatch& batch, at::Tensor* cached) const;
  at::Tensor run(const at::Tensor& fused, const Microbatch& batch);
  at::Tensor run_backward(const at::Tensor& dout, const at::Tensor& fused, const at::Tensor& y,
                          const Microbatch& batch);

  int64_t layer_;
  int64_t inner_;  // channels of this tensor-parallel rank
  int64_t head_dim_, state_dim_;
  int64_t heads_, groups_;  // of this rank, for the whole sequence
  double dt_min_, dt_max_;
  int64_t chunk_;
  SavePolicy saving_;
  SequenceExchange inputs_, results_, per_head_;  // of x, B, C and dt; of y; of parameters
  Linear in_proj_;
  ShortConvolution convolution_;
  Param dt_bias_, a_log_, d_;  // [heads]
  GatedNorm norm_;
  Linear out_proj_;
};

}  // namespace metroplex::nn
