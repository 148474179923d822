// From microbatches to final gradients: the first half of a step, and what looks for the microbatch that spoils one.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/assemble.h"

namespace metroplex::train {

// Gradients start at zero. `factors` [microbatches] double, where the losses lie: of each microbatch's summed loss.
pipeline::PipelineOutput forward_backward(Assembly& assembly, const std::vector<nn::Microbatch>& batches,
                                          const at::Tensor& factors);

// Waits for the reductions over the data-parallel ranks, and adds up what other ranks have summands of. Collective.
void finish_gradients(Assembly& assembly);

}  // namespace metroplex::train
