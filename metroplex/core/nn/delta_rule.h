// The gated delta rule (Yang, Kautz, Hatamizadeh: Gated Delta Networks, arXiv:2412.06464), without autograd. Each
// head has a state S [dk, dv], which is 0 when a document begins. For a token with query q, key k, value v, log decay
// g <= 0 and write strength beta:
//   S <- exp(g) S;  S <- S + k (beta (v - S^T k))^T;  out = S^T q / sqrt(dk)
// Consecutive value heads share a key head. All sums are in at least fp32.
// Shapes: s sequence, b microbatch, hk key heads and h value heads of this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "device/launch_point.h"

namespace metroplex::nn {

struct DeltaRuleInputs {
  at::Tensor q, k;     // [s, b, hk, dk]
  at::Tensor v;        // [s, b, h, dv]
  at::Tensor g, beta;  // [s, b, h]
};

struct DeltaRuleResult {
  at::Tensor out;    // [s, b, h, dv], in at least fp32
  at::Tensor state;  // [b, h, dk, dv], after the last token
};

// Computes one token after another. `document_ids` [b, at least s] ends with the ids of the s rows; undefined: one
// document. `state` is the state before the first row; undefined: 0.
DeltaRuleResult recurrent_delta_rule(const DeltaRuleInputs& in, const at::Tensor& document_ids,
                                     const at::Tensor& state = {});

// The same result from matrix products over chunks of 64 tokens (section 3.3 of the paper), which are reported to the
// target's recorder.
class ChunkedDeltaRule {
 public:
  ChunkedDeltaRule(const DeltaRuleInputs& in, const at::Tensor& document_ids, const at::Tensor& state = {},
                   const device::Target& target = {});
  ~ChunkedDeltaRule();
  DeltaRuleResult result() const;
  // Returns the gradients of all inputs, in their shapes and at least fp32. Requires a call without `state`.
  DeltaRuleInputs backward(const at::Tensor& dout) const;

 private:
  struct Work;
  std::unique_ptr<const Work> work_;
};

}  // namespace metroplex::nn
