// What this rank updates of one parameter: a range of its local tensor, with the values that are written and the
// final gradient. Without sharding the range is the whole local tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "nn/param.h"
#include "optim/grad_buffer.h"
#include "optim/param_buffer.h"

namespace metroplex::optim {

struct Slice {
  nn::Param* param = nullptr;
  int64_t begin = 0, end = 0;   // of the local tensor, flat
  at::Tensor values, gradient;  // [end - begin], contiguous
  int64_t size() const { return end - begin; }
  bool whole() const { return begin == 0 && end == param->numel(); }
  // Elements of the range that are padding.
  int64_t padding() const;
};

// Of two buffers over the same layout.
std::vector<Slice> own_slices(const ParamBuffer& params, const GradBuffer& gradients);
// Every parameter whole, from Param::data and Param::main_grad.
std::vector<Slice> whole_slices(const std::vector<nn::Param*>& params);

}  // namespace metroplex::optim
