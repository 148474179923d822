// Whole tensors out of their parts, on one rank: for comparing layouts and for tests. Everything travels through host
// memory, so it is for models that fit there.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "train/assemble.h"

namespace metroplex::train {

enum class Part { data, main_grad };

// Name -> unsharded, unpadded tensor on rank 0; empty elsewhere. Collective over the world. Taken from the ranks
// whose dp and tp copies come first; tied tensors once.
std::map<std::string, at::Tensor> gather_whole(const Assembly& assembly, Part part);

}  // namespace metroplex::train
