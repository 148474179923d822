#include "nn/param.h"

#include <ATen/ops/zeros_like.h>

#include "base/error.h"

namespace metroplex::nn {

int64_t Param::numel() const {
  int64_t product = 1;
  for (const int64_t size : local_shape) product *= size;
  return product;
}

int64_t Param::padding_numel() const {
  if (!sharded()) return 0;
  int64_t rows = 0;
  for (const RowRange& range : shard.ranges) rows += range.size;
  const int64_t local_rows = local_shape[static_cast<size_t>(shard.dim)];
  return local_rows == 0 ? 0 : (local_rows - rows) * (numel() / local_rows);
}

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

Shard even_shard(int dim, int64_t global_rows, int parts, int index) {
  MPX_CHECK(parts > 0 && global_rows % parts == 0, "nn", global_rows, " rows cannot be split evenly over ", parts,
            " tensor-parallel ranks; choose a tensor_parallel size that divides it");
  const int64_t rows = global_rows / parts;
  return Shard{dim, {RowRange{0, index * rows, rows}}};
}

}  // namespace metroplex::nn
