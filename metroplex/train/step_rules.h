// By what a step is judged.
#pragma once

#include "cuda/kernels/step_state.h"

namespace metroplex::train {

struct Assembly;

cuda::kernels::StepRules rules_of(const Assembly& assembly);

}  // namespace metroplex::train
