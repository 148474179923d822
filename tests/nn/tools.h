// Helpers for tests of layers: main gradients, full gradients from the ranks' shards, differences.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/collectives.h"
#include "nn/param_init.h"
#include "topology/placement.h"

namespace metroplex::test {

inline nn::LayerContext layer_context(const comm::Group& tp = {}, bool sequence_parallel = false,
                                      at::ScalarType dtype = at::kDouble) {
  nn::LayerContext context;
  nn::set_tensor_parallel(context, tp, sequence_parallel);
  context.dtype = dtype;
  context.init_std = 0.3;
  return context;
}

inline void give_main_grad(const std::vector<nn::Param*>& params) {
  for (nn::Param* param : params) {
    const bool wide = param->data.scalar_type() == at::kDouble;
    param->main_grad = at::zeros(param->data.sizes(), param->data.options().dtype(wide ? at::kDouble : at::kFloat));
  }
}

// The unsharded tensor in double, from the shards of the ranks of `tp`.
inline at::Tensor whole(const nn::Param& param, const at::Tensor& local, const comm::Group& tp) {
  if (!param.is_sharded()) {
    at::Tensor result = local.to(at::kDouble).clone();
    return result;
  }
  at::Tensor result = at::zeros(param.global_shape, at::kDouble);
  const at::Tensor flat = local.to(at::kDouble).contiguous().view(-1);
  topology::for_each_range(param.global_shape, param.placement, [&](int64_t from, int64_t to, int64_t count) {
    result.view(-1).narrow(0, to, count).copy_(flat.narrow(0, from, count));
  });
  comm::all_reduce(result, tp);
  return result;
}

// The full gradient as the optimizer would see it.
inline at::Tensor whole_gradient(const nn::Param& param, const comm::Group& tp) {
  at::Tensor gradient = whole(param, param.main_grad, tp);
  if (!param.placement.partial.empty()) comm::all_reduce(gradient, tp);
  return gradient;
}

inline double largest(const at::Tensor& x) { return x.numel() == 0 ? 0.0 : x.abs().max().item<double>(); }

// Largest absolute difference relative to the largest expected value (at least 1e-3, so that zeros compare too).
inline double relative_difference(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.sizes().vec(), expected.sizes().vec());
  return largest(got.to(at::kDouble) - expected.to(at::kDouble)) / std::max(1e-3, largest(expected.to(at::kDouble)));
}

// The same values on every rank.
inline at::Tensor sample(std::vector<int64_t> sizes, uint64_t seed, at::ScalarType dtype = at::kDouble) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  const at::Tensor index = at::arange(numel, at::kDouble) + static_cast<double>(seed) * 0.37;
  return (at::sin(index * 12.9898 + static_cast<double>(seed)) * 43758.5453)
      .frac()
      .view(sizes)
      .to(dtype)
      .contiguous();
}

}  // namespace metroplex::test
