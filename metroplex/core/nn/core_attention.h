// Core attention, softmax(softmax_scale q k^T + mask) v with dropout on the probabilities. It has no parameters
// except sinks, which belong to the module that owns the projections. The mask follows from the positions of queries
// and keys: a query attends to keys of its own document at positions up to its own. On a CPU our own kernels
// (nn/blocked_attention.h) take memory linear in the lengths. On a GPU libtorch's fused operators
// (nn/fused_attention.h) are used where they need no mask tensor.
// Shapes: s_q queries, s_k keys, b microbatch, n query heads and g key-value heads of this rank, d head size of
// queries and keys, dv of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "config/model.h"
#include "config/parallel.h"
#include "device/launch_point.h"
#include "nn/dropout.h"
#include "nn/microbatch.h"
#include "nn/param.h"
#include "nn/saved.h"

namespace metroplex::nn {

struct CoreSpec {
  int64_t heads = 0, groups = 0;         // n and g; g divides n
  int64_t head_dim = 0, v_head_dim = 0;  // d and dv
  double softmax_scale = 0;
  DropoutKey dropout;
  int64_t first_head = 0;  // global index: dropout counts by global heads
  device::Target target;
  comm::Group cp = {};  // the ranks that hold the sequence (context_attention.h)
  config::CpCommType exchange = config::CpCommType::p2p;
  comm::Group cp_a2a = {}, cp_p2p = {};      // the levels of cp, if the exchange is a2a+p2p
  std::vector<comm::Group> cp_by_size = {};  // replaces cp for microbatches with context_ranks > 0
  int64_t window = -1;                       // a query attends to this many positions before its own; -1: all
  int64_t chunk = 0;  // a query at position i attends to j <= i with i / chunk == j / chunk; 0: all. Without a window
  double softcap = 0;  // scaled scores x become softcap tanh(x / softcap); 0: off
  config::SoftmaxType softmax = config::SoftmaxType::vanilla;
};

struct CoreInputs {
  at::Tensor q, k, v;  // [s_q, b, n, d], [s_k, b, g, d], [s_k, b, g, dv]; any strides, last one 1
};
struct CorePositions {
  Positions queries, keys;
};
struct CoreResult {
  at::Tensor out;        // [s_q, b, n, dv]
  at::Tensor logsumexp;  // of the scaled scores; its shape depends on the operator
};

struct CoreCall {
  const CoreSpec& spec;
  const CorePositions& positions;
  const Microbatch& batch;
};

// Attention over the local queries and keys. A query that sees no key gives 0 and a logsumexp of -inf.
// attend_backward() takes `out` and `logsumexp` over all keys of a query, and returns the local keys' contribution
// to the gradients.
CoreResult attend(const CoreInputs& in, const CoreCall& call);
// dout [s_q, b, n, dv] may have any strides.
CoreInputs attend_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                           const CoreCall& call);

// Tensors for backward. If several blocks of keys are joined, `out` and `logsumexp` are the joined ones.
struct CoreSaved {
  Saved q, k, v;
  Saved out, logsumexp;  // out is [s_q, b, n dv]
  CorePositions positions;
  Microbatch batch;
};

// Forward and backward without autograd. The caller creates the autograd node, which may include more than the core.
class CoreAttention {
 public:
  // `sinks` [n], only with a learnable softmax: one additional score per head in the softmax's denominator, without a
  // value.
  CoreAttention(const CoreSpec& spec, const SavePolicy& saving, std::shared_ptr<Param> sinks = nullptr);

  // Returns [s_q, b, n dv]. Masked positions have probability 0; a query with every key masked gives 0. `saved` may
  // be null; otherwise it is filled according to the policy. Inputs that have their own recomputation are not saved.
  // If the policy recomputes the core, the result includes its recomputation.
  Input forward(const Input& q, const Input& k, const Input& v, const CorePositions& positions,
                const Microbatch& batch, CoreSaved* saved) const;
  // Maps dout [s_q, b, n dv] to the gradients of q, k and v in their shapes.
  CoreInputs backward(const at::Tensor& dout, const CoreSaved& saved) const;

 private:
  const CoreSpec& spec_for(const Microbatch& batch) const;
  CoreResult compute(const CoreInputs& in, const CorePositions& positions, const Microbatch& batch) const;
  at::Tensor sink_scores(const at::Tensor& logsumexp) const;
  CoreResult with_sinks(const CoreResult& result) const;
  void add_sink_gradient(const at::Tensor& dout, const CoreResult& result) const;

  CoreSpec spec_;
  std::vector<CoreSpec> by_size_;
  SavePolicy saving_;
  std::shared_ptr<Param> sinks_;
};

}  // namespace metroplex::nn
