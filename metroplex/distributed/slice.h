// The part of one parameter that this rank updates: a range of its local tensor, with the values to be written and
// the final gradient. Without sharding the range is the whole local tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "nn/param.h"
#include "distributed/grad_buffer.h"
#include "distributed/param_buffer.h"

namespace metroplex::distributed {

struct Slice {
  nn::Param* param = nullptr;
  int64_t begin = 0, end = 0;   // of the local tensor, flat
  at::Tensor values, gradient;  // [end - begin], contiguous; of a frozen parameter there is no gradient
  int64_t size() const { return end - begin; }
  bool whole() const { return begin == 0 && end == param->numel(); }
  // Elements of the range that are padding.
  int64_t padding() const;
};

std::vector<Slice> own_slices(const ParamBuffer& params);
// Of two buffers over the same layout.
std::vector<Slice> own_slices(const ParamBuffer& params, const GradBuffer& gradients);

}  // namespace metroplex::distributed
