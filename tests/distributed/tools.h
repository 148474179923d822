// Parameters without a model.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "distributed/slice.h"
#include "nn/param.h"

namespace metroplex::test {

// Repeatable values in (-1, 1), different for every `number`.
inline at::Tensor values(std::vector<int64_t> shape, int number, at::ScalarType dtype = at::kDouble) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  const at::Tensor index = at::arange(numel, at::kDouble) + 1.0 + 17.0 * number;
  return at::sin(index * index * 0.37 + number).view(shape).to(dtype);
}

inline nn::Param make_param(const std::string& name, const at::Tensor& data) {
  nn::Param param;
  param.name = name;
  param.data = data;
  param.dtype = data.scalar_type();
  param.global_shape = param.local_shape = data.sizes().vec();
  return param;
}

inline std::vector<nn::Param*> pointers(std::vector<nn::Param>& params) {
  std::vector<nn::Param*> list;
  for (nn::Param& param : params) list.push_back(&param);
  return list;
}

// Every parameter whole, from Param::data and Param::main_grad.
inline std::vector<distributed::Shard> whole_shards(const std::vector<nn::Param*>& params) {
  std::vector<distributed::Shard> slices;
  for (nn::Param* param : params)
    slices.push_back({param, 0, param->numel(), param->data.view(-1), param->main_grad.view(-1)});
  return slices;
}

}  // namespace metroplex::test
