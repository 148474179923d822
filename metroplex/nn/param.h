// A parameter and everything others need to know of it: name, placement, gradient. Optimizer, gradient reduction,
// gradient norm and checkpoint read the placement here and nowhere else. Parameters are not autograd leaves: a layer
// reads `data` in forward and again in backward and adds the weight gradient into `main_grad` itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "topology/placement.h"

namespace metroplex::nn {

enum class Init { normal, scaled_normal /* std / sqrt(2 L) */, zeros, ones };

struct Param {
  std::string name;                   // global: layer numbers count over the whole model
  std::vector<int64_t> global_shape;  // unsharded, vocabulary unpadded
  topology::Placement placement;
  Init init = Init::normal;
  std::vector<int64_t> local_shape;        // of the local part, also while `data` is away (ZeRO-3)
  std::function<void(Param&)> initialize;  // set instead of values when these are wanted later: fills `data`
  at::Tensor data;       // the local part; undefined between uses when it is sharded over dp (optim/param_buffer)
  at::Tensor main_grad;  // same shape; a view of the gradient buffer (optim/grad_buffer)

  bool owner = true;            // false: another holder of placement.shared counts and saves it (train/sharing.h)
  int uses_per_microbatch = 1;  // calls of accumulate() that one microbatch makes (2: tied head on one stage)

  // Called by layers: adds to main_grad through `add`, then counts one use. The owner of main_grad sets before_use,
  // which may make it, and on_use. An fp16 parameter's gradient of one microbatch is rounded to fp16, use by use and
  // as their sum, before it is added: what fp16 cannot hold is an overflow, as in Megatron-LM, where autograd makes
  // it.
  void accumulate(const std::function<void(at::Tensor& main_grad)>& add);
  std::function<void()> before_use, on_use;
  at::Tensor microbatch_grad;  // fp16 with several uses a microbatch: their sum, until the last one
  int uses_of_microbatch = 0;  // that are in it

  int64_t numel() const;          // of the local part
  int64_t padding_numel() const;  // of it: rows of a cut dim in no range
  bool cut() const { return !placement.cuts.empty(); }
  bool decays() const { return topology::decays(placement, global_shape.size()); }
  bool has_matrices() const { return topology::has_matrices(placement, global_shape.size()); }
  // Of all ranks that hold the same elements at one data-parallel place, exactly one says true.
  bool counts(const topology::Coordinates& at) const { return owner && topology::counts(placement, at); }
};

}  // namespace metroplex::nn
