#include "nn/param.h"

#include <ATen/ops/zeros_like.h>

namespace metroplex::nn {

int64_t Param::numel() const {
  int64_t product = 1;
  for (const int64_t size : local_shape) product *= size;
  return product;
}

int64_t Param::padding_numel() const { return topology::padding_numel(global_shape, placement); }

namespace {

void accumulate_fp16(Param& param, const std::function<void(at::Tensor& main_grad)>& add) {
  at::Tensor one_use = at::zeros_like(param.main_grad);
  add(one_use);
  one_use = one_use.to(at::kHalf);
  if (param.uses_per_microbatch == 1) {
    param.main_grad.add_(one_use);
    return;
  }
  param.microbatch_grad = param.uses_of_microbatch == 0 ? one_use : param.microbatch_grad.add_(one_use);
  if (++param.uses_of_microbatch < param.uses_per_microbatch) return;
  param.main_grad.add_(param.microbatch_grad);
  param.microbatch_grad.reset();
  param.uses_of_microbatch = 0;
}

}  // namespace

void Param::accumulate(const std::function<void(at::Tensor& main_grad)>& add) {
  if (before_use) before_use();
  if (data.scalar_type() == at::kHalf) {
    accumulate_fp16(*this, add);
  } else {
    add(main_grad);
  }
  if (on_use) on_use();
}

}  // namespace metroplex::nn
