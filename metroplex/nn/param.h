// A parameter and everything others need to know of it: name, placement, gradient. Optimizer, gradient reduction,
// gradient norm and checkpoint read the placement here and nowhere else. Parameters are not autograd leaves: a layer
// reads `data` in forward and again in backward and adds the weight gradient into `main_grad` itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/named_tensor.h"

namespace metroplex::nn {

enum class Init { normal, scaled_normal /* std / sqrt(2 L) */, zeros, ones };

struct Param : NamedTensor {
  Init init = Init::normal;
  at::ScalarType dtype = at::kFloat;       // that `data` will have, while it is away
  std::function<void(Param&)> initialize;  // set instead of values when these are wanted later: fills `data`
  at::Tensor main_grad;                    // same shape; a view of the gradient buffer (distributed/grad_buffer)
  // A copy of a part of another parameter (ECHO's experts in spare slots): has values and a gradient, which its home
  // sends and fetches; nobody updates, counts or saves it.
  bool clone = false;

  int uses_per_microbatch = 1;  // calls of accumulate() that one microbatch makes (2: tied head on one stage)

  // Called by layers: adds to main_grad through `add`, then counts one use. The owner of main_grad sets before_use,
  // which may make it, and on_use. An fp16 parameter's gradient of one microbatch is rounded to fp16, use by use and
  // as their sum, before it is added: what fp16 cannot hold is an overflow, as in Megatron-LM, where autograd makes
  // it.
  void accumulate(const std::function<void(at::Tensor& main_grad)>& add);
  std::function<void()> before_use, on_use;
  at::Tensor microbatch_grad;  // fp16 with several uses a microbatch: their sum, until the last one
  int uses_of_microbatch = 0;  // that are in it

  at::ScalarType scalar_type() const { return data.defined() ? data.scalar_type() : dtype; }
  bool decays() const { return topology::decays(placement, global_shape.size()); }
  bool has_matrices() const { return topology::has_matrices(placement, global_shape.size()); }
};

}  // namespace metroplex::nn
