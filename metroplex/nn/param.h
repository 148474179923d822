// A parameter and everything others need to know of it: name, placement, gradient. Optimizer, gradient reduction,
// gradient norm and checkpoint read the placement here and nowhere else. Parameters are not autograd leaves: a layer
// reads `data` in forward and again in backward and adds the weight gradient into `main_grad` itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/listeners.h"

namespace metroplex::nn {

// Rows [local, local + size) of the local tensor are rows [global, global + size) of the whole one, along Shard::dim.
struct RowRange {
  int64_t local = 0, global = 0, size = 0;
};

// How the local tensor lies in the whole one. dim < 0: every tensor-parallel rank holds all of it (replicated).
// A sharded dim may be several ranges (gate and up of a gated fc1); rows in no range are padding.
struct Shard {
  int dim = -1;
  std::vector<RowRange> ranges;
};

enum class Init { normal, scaled_normal /* std / sqrt(2 L) */, zeros, ones };

struct Param {
  std::string name;                   // global: layer numbers count over the whole model
  std::vector<int64_t> global_shape;  // unsharded, vocabulary unpadded
  Shard shard;
  Init init = Init::normal;
  std::vector<int64_t> local_shape;        // of the local part, also while `data` is away (ZeRO-3)
  std::function<void(Param&)> initialize;  // set instead of values when these are wanted later: fills `data`
  at::Tensor data;       // the local part; undefined between uses when it is sharded over dp (optim/param_buffer)
  at::Tensor main_grad;  // same shape; a view of the gradient buffer (optim/grad_buffer)

  bool weight_decay = true;  // false for biases and 1-D tensors
  bool partial_grad_over_tp =
      false;               // replicated over tp, but each rank's gradient covers its part of the sequence only
  bool tied = false;       // the word embedding under a tied head: its gradient is summed over both stages
  bool tied_copy = false;  // the last stage's copy of it: not counted or saved a second time
  bool embedding_or_output = false;
  int calls_per_use = 1;        // calls of accumulate() that complete one segment's use
  int uses_per_microbatch = 1;  // segments that read it, see count_uses() (2: tied head on one stage)

  // Called by layers: adds to main_grad through `add`; the last call of a use counts it. Whoever hears before_use
  // first may make main_grad; on_use is told in reverse order of joining. An fp16 parameter's gradient of one
  // microbatch is rounded to fp16, use by use and as their sum, before it is added: what fp16 cannot hold is an
  // overflow, as in Megatron-LM, where autograd makes it.
  void accumulate(const std::function<void(at::Tensor& main_grad)>& add);
  base::Listeners<std::function<void()>> before_use, on_use;
  // Around the backward of an island of which `segments` segments list the parameter: uses that it did not reach, or
  // not in full, count when it ends.
  void begin_backward() { calls_of_backward = 0; }
  void end_backward(int segments);

  int calls_of_backward = 0;   // of accumulate()
  at::Tensor microbatch_grad;  // fp16: sum of the calls of a microbatch, until its last use
  int uses_of_microbatch = 0;  // that are in it

  int64_t numel() const;          // of the local part
  int64_t padding_numel() const;  // of it: rows of a sharded dim in no range
  bool sharded() const { return shard.dim >= 0; }
  // Of all ranks that hold the same elements at one data-parallel place, exactly one says true.
  bool counts(bool first_of_tp) const { return !tied_copy && (sharded() || first_of_tp); }
};

// The range list of an even split: this rank's rows of `global_rows`, which is a multiple of `parts`.
Shard even_shard(int dim, int64_t global_rows, int parts, int index);

}  // namespace metroplex::nn
