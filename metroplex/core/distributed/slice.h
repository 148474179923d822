// The shard of one parameter that this rank updates: a range of its local tensor, with its values and the final
// gradient. Without sharding, the range is the whole local tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "nn/param.h"
#include "distributed/grad_buffer.h"
#include "distributed/param_buffer.h"

namespace metroplex::distributed {

struct Shard {
  nn::Param* param = nullptr;
  int64_t begin = 0, end = 0;   // in the flattened local tensor
  at::Tensor values, gradient;  // [end - begin], contiguous; a frozen parameter has no gradient
  int64_t size() const { return end - begin; }
  bool whole() const { return begin == 0 && end == param->numel(); }
  // Number of padding elements in the range.
  int64_t padding() const;
};

std::vector<Shard> own_shards(const ParamBuffer& params);
// Both buffers must have the same layout.
std::vector<Shard> own_shards(const ParamBuffer& params, const GradBuffer& gradients);

}  // namespace metroplex::distributed
