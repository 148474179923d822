// Gathers whole tensors from their shards on rank 0, for layout comparisons and tests. The whole model must fit in
// host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "step/assemble.h"

namespace metroplex::verify {

enum class GatherKind { data, main_grad };

// A shard of a parameter-shaped tensor: [begin, end) of the flattened local tensor.
struct ParamShard {
  const nn::NamedTensor* param;
  int64_t begin, end;
  at::Tensor values;  // [end - begin]
};

// Returns name -> unsharded, unpadded tensor on rank 0; an empty map on other ranks. Collective over the world. Uses
// the first replica of each shard, and the owner of a shared tensor. All shards have dtype `dtype`.
std::map<std::string, at::Tensor> gather_shards(const step::ProcessContext& process, const step::RankModel& model,
                                                const std::vector<ParamShard>& slices, at::ScalarType dtype);
// Gathers parameters, or the final gradients of trainable parameters. Gradients need a training assembly after the
// step's reduction.
std::map<std::string, at::Tensor> gather_whole(const step::ProcessContext& process, const step::RankModel& model,
                                               const step::Optimization& optimization, GatherKind what);

}  // namespace metroplex::verify
