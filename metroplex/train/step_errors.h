// Why a step does not update: losses or gradients that are not finite, which in runs without a loss scale end all
// ranks with an error that names the cause; and rows of experts that found no room, for which it runs again.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cuda/kernels/step_state.h"
#include "train/assemble.h"
#include "train/step.h"

namespace metroplex::train {

// Some rank has a loss that is not finite: throws base::Error("numerics"), on that rank naming it and the microbatch;
// the others wait for that. `losses` are this rank's, of `count` microbatches. Collective.
[[noreturn]] void refuse_losses(const Assembly& assembly, const StepInput& input, const double* losses,
                                int64_t count);

// Some gradient is not finite: throws base::Error("numerics"), naming parameter, rank and microbatch, which are found
// by running each microbatch alone. `factors` [microbatches] are those of the losses. Collective.
[[noreturn]] void refuse_gradients(Assembly& assembly, const StepInput& input, const at::Tensor& factors);

// The rules by which judge_step decides whether a step updates.

cuda::kernels::StepRules rules_of(const Assembly& assembly);

// Steps in which rows of experts found no room in the static buffers of model.moe_token_dispatcher_type.

// What moe::NoRoom says on the rank that needs the largest factor. Throws it as base::Error("moe") where
// model.moe_overflow_policy is stop. Collective, with the same result on all; before the next step.
std::string overflow_of(const Assembly& assembly);

// During its lifetime rows are sent by counts that the host reads, so that all of them find room.
class Repeating {
 public:
  explicit Repeating(Assembly& assembly) : buffers_(*assembly.experts->buffers) { buffers_.repeats = true; }
  ~Repeating() { buffers_.repeats = false; }
  Repeating(const Repeating&) = delete;
  Repeating& operator=(const Repeating&) = delete;

 private:
  moe::StaticBuffers& buffers_;
};

}  // namespace metroplex::train
