// A parameter and everything others need to know of it: name, placement, gradient. Optimizer, gradient reduction,
// gradient norm and checkpoint read the placement here and nowhere else. Parameters are not autograd leaves: a layer
// reads `data` in forward and again in backward and adds the weight gradient into `main_grad` itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/listeners.h"
#include "comm/collectives.h"
#include "nn/named_tensor.h"

namespace metroplex::nn {

enum class Init { normal, scaled_normal /* std / sqrt(2 L) */, zeros, ones, uniform_of_inputs /* +- 1 / sqrt(in) */ };

struct Param : NamedTensor {
  Init init = Init::normal;
  at::ScalarType dtype = at::kFloat;       // that `data` will have, while it is away
  std::function<void(Param&)> initialize;  // set instead of values when these are wanted later: fills `data`
  at::Tensor main_grad;                    // same shape; a view of the gradient buffer (distributed/grad_buffer)
  bool frozen = false;  // no gradient: what is accumulated is not computed, and main_grad stays undefined
  bool fresh = false;   // main_grad holds nothing of this step yet, whatever lies there

  int calls_per_use = 1;        // calls of accumulate() that complete one use
  int uses_per_microbatch = 1;  // how often segments read it, see count_uses() (2: tied head on one stage)

  // Called by layers, a frozen parameter ignores it: adds to main_grad through `add`, which owns what it reads and
  // may be called later (deferred); the last call of a use counts it. The first before_use listener may allocate
  // main_grad; on_use listeners are called in reverse order of registration. An fp16 parameter's gradient of one
  // microbatch is rounded to fp16, use by use and as their sum, before it is added: what fp16 cannot hold is an
  // overflow, as in Megatron-LM, where autograd makes it.
  void accumulate(const std::function<void(at::Tensor& main_grad)>& add);
  // The same for what can also write: with `adds` false `put` fills all of main_grad, which needs no zeros then.
  void accumulate_or_write(const std::function<void(at::Tensor& main_grad, bool adds)>& put);
  // Adds what other ranks have to add. `start` is called now, with what they add to: a tensor like main_grad, which
  // nobody else touches until the operation that it returns is waited for. That is when the last use of the
  // microbatch counts, of which this is none; `held` lives as long. One at a time.
  void accumulate_later(const std::function<comm::Handle(const at::Tensor& sums)>& start, at::Tensor held);
  // Waits for it now; without it, nothing.
  void settle();
  bool settled() const { return !arriving.has_value(); }
  // Zeroes a fresh main_grad. To be called before it is read, or an addition to it is captured.
  void zero_fresh();
  base::Listeners<std::function<void()>> before_use, on_use;
  void tell_before_use() const;
  void tell_use() const;
  // Where not null, the calls above are put here instead, in order, and do their work when they are called.
  std::vector<std::function<void()>>* deferred = nullptr;
  // Around the backward of an island whose segments list the parameter `times` times: uses that it did not reach, or
  // not in full, count when it ends. With `tells` false the listeners are not called: a captured backward calls
  // them beside every replay, and leaves nothing unsettled.
  void begin_backward(bool tells = true);
  void end_backward(int times);

  int calls_of_backward = 0;   // of accumulate()
  bool tells = true;           // the listeners, in this backward
  at::Tensor microbatch_grad;  // fp16: sum of the calls of a microbatch, until its last use
  int uses_of_microbatch = 0;  // that are in it
  struct Arriving {
    comm::Handle handle;
    at::Tensor held;
    at::Tensor sums;  // fp16: what goes into microbatch_grad; undefined: main_grad itself
  };
  std::optional<Arriving> arriving;  // accumulate_later()

  at::ScalarType scalar_type() const { return data.defined() ? data.scalar_type() : dtype; }
  bool decays() const { return topology::decays(placement, global_shape.size()); }
  bool has_matrices() const { return topology::has_matrices(placement, global_shape.size()); }
};

}  // namespace metroplex::nn
