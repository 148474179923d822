// Handles steps without an update. Without a loss scale, non-finite losses or gradients end all ranks with an error
// that names the cause. If expert rows overflow a buffer, the step runs again.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "kernels/step_state.h"
#include "step/assemble.h"
#include "step/step.h"

namespace metroplex::step {

// Throws base::Error("numerics") because some rank has a non-finite loss. The error on that rank names it and the
// microbatch; the other ranks wait for it. `losses` [count] are those of this rank's microbatches. Collective.
[[noreturn]] void refuse_losses(const Assembly& assembly, const StepInput& input, const double* losses,
                                int64_t count);

// Throws base::Error("numerics") because some gradient is not finite. Runs each microbatch alone to find parameter,
// rank and microbatch. `factors` [microbatches] are the loss factors. Collective.
[[noreturn]] void refuse_gradients(Assembly& assembly, const StepInput& input, const at::Tensor& factors);

// Rules by which judge_step decides whether a step updates.

kernels::StepRules rules_of(const Assembly& assembly);

// Handling of steps whose expert rows exceed the static buffers of model.moe_token_dispatcher_type.

// Returns moe::NoRoom::text of the rank that needs the largest factor. Throws it as base::Error("moe") if
// model.moe_overflow_policy is stop. Call before the next step. Collective, with the same result on all ranks.
std::string overflow_of(const Assembly& assembly);

// During its lifetime, expert rows are sent by counts that the host reads, so all rows fit.
class Repeating {
 public:
  explicit Repeating(Assembly& assembly) : buffers_(*assembly.experts->buffers) { buffers_.repeats = true; }
  ~Repeating() { buffers_.repeats = false; }
  Repeating(const Repeating&) = delete;
  Repeating& operator=(const Repeating&) = delete;

 private:
  moe::StaticBuffers& buffers_;
};

}  // namespace metroplex::step
