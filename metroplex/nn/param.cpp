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

void tell_before_use(const Param& param) {
  for (const auto& [name, call] : param.before_use) call();
}

void accumulate_fp16(Param& param, const std::function<void(at::Tensor& main_grad)>& add) {
  at::Tensor one_call = at::zeros_like(param.main_grad);
  add(one_call);
  one_call = one_call.to(at::kHalf);
  param.microbatch_grad = param.microbatch_grad.defined() ? param.microbatch_grad.add_(one_call) : one_call;
}

// The last use of a microbatch hands its fp16 sum over.
void end_use(Param& param) {
  if (++param.uses_of_microbatch == param.uses_per_microbatch) {
    if (param.microbatch_grad.defined()) param.main_grad.add_(param.microbatch_grad);
    param.microbatch_grad.reset();
    param.uses_of_microbatch = 0;
  }
  for (auto entry = param.on_use.rbegin(); entry != param.on_use.rend(); ++entry) entry->listener();
}

}  // namespace

void Param::accumulate(const std::function<void(at::Tensor& main_grad)>& add) {
  tell_before_use(*this);
  if (data.scalar_type() == at::kHalf) {
    accumulate_fp16(*this, add);
  } else {
    add(main_grad);
  }
  if (++calls_of_backward % calls_per_use == 0) end_use(*this);
}

void Param::end_backward(int segments) {
  MPX_ASSERT(calls_of_backward <= segments * calls_per_use, "parameter ", name, " got ", calls_of_backward,
             " gradients from ", segments, " segments of ", calls_per_use, " each");
  for (int uses = calls_of_backward / calls_per_use; uses < segments; ++uses) {
    tell_before_use(*this);
    end_use(*this);
  }
}

Shard even_shard(int dim, int64_t global_rows, int parts, int index) {
  MPX_CHECK(parts > 0 && global_rows % parts == 0, "nn", global_rows, " rows cannot be split evenly over ", parts,
            " tensor-parallel ranks; choose a tensor_parallel size that divides it");
  const int64_t rows = global_rows / parts;
  return Shard{dim, {RowRange{0, index * rows, rows}}};
}

}  // namespace metroplex::nn
