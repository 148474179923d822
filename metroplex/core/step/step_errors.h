// Handles steps without an update. Without a loss scale, a non-finite loss or gradient stops all ranks with an error
// that names the cause. If expert rows overflow a buffer, the step runs again.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "kernels/step_state.h"
#include "step/assemble.h"
#include "step/step.h"

namespace metroplex::step {

// Throws base::Error("numerics") because some rank has a non-finite loss. The error on that rank reports the
// loss and the microbatch; the other ranks throw after it. `losses` has one loss per microbatch of this rank. Runs
// the microbatches again if operands are rounded, to find the first operand that is not finite. Collective.
[[noreturn]] void throw_nonfinite_loss(Assembly& assembly, const StepInput& input, const double* losses);

// Throws base::Error("numerics") because some gradient is not finite. Runs each microbatch alone to find parameter,
// rank, microbatch, and the first rounded operand that is not finite. With hybrid context parallelism all run
// together, and no microbatch is reported. `factors` [microbatches] are the loss factors. Collective.
[[noreturn]] void throw_nonfinite_grad(Assembly& assembly, const StepInput& input, const at::Tensor& factors);

// Returns the rules that judge_step uses to decide whether to apply the update.
kernels::StepRules make_step_rules(const ProcessContext& process, const Optimization& optimization);

// Returns moe::NoRoom::text of the rank that needs the largest factor, of the static buffers or of the paged stash.
// Throws it as base::Error("moe") if
// model.moe_overflow_policy is stop. Call before the next step. Collective, with the same result on all ranks.
std::string check_overflow(const ProcessContext& process, const RankModel& model);

// While this object exists, the host reads the row counts and messages have exact sizes, so all rows fit.
class RerunScope {
 public:
  explicit RerunScope(const RankModel& model) : buffers_(*model.experts->buffers) { buffers_.repeats = true; }
  ~RerunScope() { buffers_.repeats = false; }
  RerunScope(const RerunScope&) = delete;
  RerunScope& operator=(const RerunScope&) = delete;

 private:
  moe::StaticBuffers& buffers_;
};

}  // namespace metroplex::step
