// Gathers whole tensors from their slices on rank 0, for comparing layouts and for tests. Everything goes through
// host memory, so the model has to fit there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "train/assemble.h"

namespace metroplex::train {

enum class Gathered { data, main_grad };

// A tensor shaped like a parameter, a slice of it: [begin, end) of the local tensor.
struct SliceOfParam {
  const nn::NamedTensor* param;
  int64_t begin, end;
  at::Tensor values;  // [end - begin]
};

// Name -> unsharded, unpadded tensor on rank 0; empty elsewhere. Collective over the world. Taken from the ranks
// whose copies come first, a shared tensor from its owner. All slices are of `dtype`.
std::map<std::string, at::Tensor> gather_slices(const Assembly& assembly, const std::vector<SliceOfParam>& slices,
                                                at::ScalarType dtype);
// Parameters, or final gradients of those that are trained (a training assembly, after its step's reduction).
std::map<std::string, at::Tensor> gather_whole(const Assembly& assembly, Gathered what);

}  // namespace metroplex::train
