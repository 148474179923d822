// How the numbers of a device come to the host. Reading them waits for all that was enqueued before, so all
// reads go through this function, which a Recorder sees; on the CPU too, where it is a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include "cuda/launch_point.h"

namespace metroplex::cuda {

// A copy of x, a tensor of target.memory(), on the host. Asserts that there are values (Target::meta).
at::Tensor read_on_host(const Target& target, const at::Tensor& x);

// Overwrites x, a tensor of `target`'s, with a host's tensor of its shape and type. Nobody waits.
void write_from_host(const Target& target, const at::Tensor& x, const at::Tensor& host);

}  // namespace metroplex::cuda
