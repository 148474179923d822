// Whole tensors out of their parts, on one rank: for comparing layouts and for tests. Everything travels through host
// memory, so it is for models that fit there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "train/assemble.h"

namespace metroplex::train {

enum class Part { data, main_grad };

// A tensor shaped like a parameter, in part: [begin, end) of the local tensor.
struct PartOfParam {
  const nn::Param* param;
  int64_t begin, end;
  at::Tensor values;  // [end - begin]
};

// Name -> unsharded, unpadded tensor on rank 0; empty elsewhere. Collective over the world. Taken from the ranks
// whose copies come first, a shared tensor from its owner. All parts are of `dtype`.
std::map<std::string, at::Tensor> gather_parts(const Assembly& assembly, const std::vector<PartOfParam>& parts,
                                               at::ScalarType dtype);
// Parameters, or final gradients (a training assembly, after its step's reduction).
std::map<std::string, at::Tensor> gather_whole(const Assembly& assembly, Part part);

}  // namespace metroplex::train
