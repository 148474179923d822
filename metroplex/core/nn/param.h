// A parameter with its name, placement and gradient. Optimizer, gradient reduction, gradient norm and checkpoint read
// the placement only here. Parameters are not autograd leaves: a layer reads `data` in forward and in backward, and
// adds the weight gradient to `main_grad` itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/listeners.h"
#include "comm/collectives.h"
#include "nn/named_tensor.h"

namespace metroplex::nn {

struct StoredWeight;   // stored_weight.h
struct RoundedWeight;  // rounded_weight.h

enum class Init {
  normal,
  scaled_normal,  // std / sqrt(2 L)
  zeros,
  ones,
  uniform_fan_in,  // +- 1 / sqrt(in)
  log_uniform,     // ln of 1 to 16
  time_step,       // softplus of it is 0.001 to 0.1, evenly by logarithm
};

struct Param : NamedTensor {
  Init init = Init::normal;
  at::ScalarType dtype = at::kFloat;       // dtype of `data`, also while `data` is undefined
  std::function<void(Param&)> initialize;  // set while initialization is deferred: fills `data`
  at::Tensor main_grad;                    // same shape; a view of the gradient buffer
  // Magnitudes of the operands of products with this weight (operand_rounding.h); null without delayed scales.
  std::shared_ptr<Buffer> operand_history;
  // The values, with `data` undefined; null: they are `data`.
  std::shared_ptr<StoredWeight> stored;
  // The rounded values that products use; null: each use rounds the values.
  std::shared_ptr<RoundedWeight> rounded;
  bool frozen = false;         // no gradient is computed, and main_grad stays undefined
  bool uninitialized = false;  // main_grad is uninitialized in this step; its memory may hold old values

  int calls_per_use = 1;        // accumulate() calls that complete one use
  int uses_per_microbatch = 1;  // segment reads per microbatch, see count_uses() (2: tied head on one stage)

  // Adds to main_grad by calling `add`; no-op if frozen. `add` owns the tensors it reads, because the call may be
  // deferred. The last call of a use counts the use. The first before_use listener may allocate main_grad. on_use
  // listeners run in reverse order of registration.
  // For an fp16 parameter each gradient, and their sum over a microbatch, is rounded to fp16 before it is added to
  // main_grad. Values out of fp16's range overflow, as in Megatron-LM, where autograd produces fp16 gradients.
  void accumulate(const std::function<void(at::Tensor& main_grad)>& add);
  // Same for operators that can also overwrite: with `adds` false, `put` fills all of main_grad, which needs no
  // zeros.
  void accumulate_or_write(const std::function<void(at::Tensor& main_grad, bool adds)>& put);
  // Adds a contribution that arrives from other ranks. Calls `start` with the tensor to add to, which is shaped like
  // main_grad. No other code may access that tensor before the returned operation has completed. The last use of the
  // microbatch waits for it; this call does not count as a use. `held` stays alive until then. Only one may be
  // pending; no-op if frozen.
  void accumulate_async(const std::function<comm::Handle(const at::Tensor& sums)>& start, at::Tensor held);
  // Waits for the pending contribution, if any.
  void synchronize();
  bool is_synchronized() const { return !pending_grad.has_value(); }
  // Zeroes main_grad if it is uninitialized. This is required before a read of main_grad, and before the capture of
  // an addition.
  void zero_uninitialized();
  base::Listeners<std::function<void()>> before_use, on_use;
  void notify_before_use() const;
  void notify_use() const;
  // If not null, the accumulate calls above are appended here instead, and do their work when the closures run.
  std::vector<std::function<void()>>* deferred = nullptr;
  // begin_backward() and end_backward() enclose the backward of a region whose segments list the parameter `times`
  // times. end_backward() counts the uses that the backward did not reach or complete. With `notifies` false the
  // listeners are not called: a captured backward calls them at every replay instead, and leaves no contribution
  // pending.
  void begin_backward(bool notifies = true);
  void end_backward(int times);

  int backward_calls = 0;  // accumulate() calls in this backward
  bool notifies = true;
  at::Tensor microbatch_grad;  // fp16: sum over the microbatch, until its last use
  int microbatch_uses = 0;
  struct PendingGradient {
    comm::Handle handle;
    at::Tensor held;
    at::Tensor sums;  // fp16: sum to be added to microbatch_grad; undefined: main_grad itself
  };
  std::optional<PendingGradient> pending_grad;  // the pending accumulate_async()

  at::ScalarType scalar_type() const { return data.defined() ? data.scalar_type() : dtype; }
  bool has_weight_decay() const { return topology::has_weight_decay(placement, global_shape.size()); }
  bool has_matrices() const { return topology::has_matrices(placement, global_shape.size()); }
};

}  // namespace metroplex::nn
