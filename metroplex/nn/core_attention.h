// Core attention, softmax(softmax_scale q k^T + mask) v with dropout on the probabilities: what lies between the
// projections, and has no parameters but sinks, which belong to who has the projections. The mask follows from the
// positions of queries and keys: a query attends to keys of its own document at positions up to its own. Our own
// kernels (nn/blocked_attention.h) take memory linear in the lengths; on a GPU libtorch's fused operators
// (nn/fused_attention.h) are used where they need no mask tensor. Shapes: s_q queries, s_k keys, b microbatch, n
// query heads and g key-value heads of this rank, d head size of queries and keys, dv of values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "config/model.h"
#include "config/parallel.h"
#include "cuda/launch_point.h"
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
  int64_t first_head = 0;  // of the model's heads: dropout counts by these
  cuda::Target target;
  comm::Group cp = {};  // whose ranks hold the keys of the sequence (context_attention.h)
  config::CpCommType exchange = config::CpCommType::p2p;
  comm::Group cp_a2a = {}, cp_p2p = {};      // the levels of cp, where the exchange is a2a+p2p
  std::vector<comm::Group> cp_by_size = {};  // instead of cp, for a microbatch that says how many ranks share it
  int64_t window = -1;                       // how many positions before its own a query attends to; -1: all
  double softcap = 0;                        // scaled scores x become softcap tanh(x / softcap); 0: they stay
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
  at::Tensor logsumexp;  // of the scaled scores; its shape is that of the operator
};

// What a core is told of one call beside its inputs.
struct CoreCall {
  const CoreSpec& spec;
  const CorePositions& positions;
  const Microbatch& batch;
};

// The operator itself, over the queries and keys that are here: a query that sees none of them gives 0 and a
// logsumexp of -inf. backward takes `out` and `logsumexp` over all keys of a query, and gives what these keys add to
// the gradients.
CoreResult attend(const CoreInputs& in, const CoreCall& call);
// dout [s_q, b, n, dv], any strides.
CoreInputs attend_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                           const CoreCall& call);

// What backward needs. Who joins the results of several blocks of keys puts the joined ones in here.
struct CoreSaved {
  Saved q, k, v;
  Saved out, logsumexp;  // out as [s_q, b, n dv]
  CorePositions positions;
  Microbatch batch;
};

// Forward and backward without autograd: its caller makes the node, of which the core may be a part.
class CoreAttention {
 public:
  // `sinks` [n], with a learnable softmax only: a score of each head that its softmax counts beside the keys, which
  // has no value to add.
  CoreAttention(const CoreSpec& spec, const SavePolicy& saving, std::shared_ptr<Param> sinks = nullptr);

  // -> [s_q, b, n dv]. Masked positions have probability 0; a query with every key masked gives 0. `saved` may be
  // null; else it is filled as the policy says. Where that is to recompute the core, the result comes with its
  // recomputation, and inputs that have one are not saved either.
  Input forward(const Input& q, const Input& k, const Input& v, const CorePositions& positions,
                const Microbatch& batch, CoreSaved* saved) const;
  // dout [s_q, b, n dv] -> gradients in the shapes of q, k and v.
  CoreInputs backward(const at::Tensor& dout, const CoreSaved& saved) const;

 private:
  const CoreSpec& spec_for(const Microbatch& batch) const;
  CoreResult compute(const CoreInputs& in, const CorePositions& positions, const Microbatch& batch) const;
  at::Tensor sink_scores(const at::Tensor& logsumexp) const;
  CoreResult with_sinks(const CoreResult& result) const;
  void add_sink_gradient(const at::Tensor& dout, const CoreResult& result) const;

  CoreSpec spec_;
  std::vector<CoreSpec> by_size_;  // with each of cp_by_size
  SavePolicy saving_;
  std::shared_ptr<Param> sinks_;
};

}  // namespace metroplex::nn
