// What is wrong with a step whose loss or gradients are not finite, without a loss scale: nothing was updated, and
// all ranks end with an error that names what is to blame.
#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace metroplex::train
