#include "moe/grouped_product.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "cuda/kernels/grouped_choice.h"
#include "cuda/kernels/grouped_product.h"
#include "nn/wide.h"

namespace metroplex::moe {

namespace kernels = cuda::kernels;

namespace {

kernels::GroupedOperand operand(const at::Tensor& x) {
  MPX_ASSERT(x.is_contiguous(), "a grouped product of a strided tensor");
  const int64_t stack = x.dim() == 3 ? x.size(1) * x.size(2) : 0;
  return {x.is_meta() ? nullptr : x.const_data_ptr(), x.size(-1), stack, static_cast<int64_t>(x.element_size())};
}

int64_t* integers(const at::Tensor& x) { return static_cast<int64_t*>(x.mutable_data_ptr()); }

}  // namespace

struct GroupedProduct::Call {
  kernels::GroupedOp op;
  at::Tensor a, b, c, counts;
  int64_t in, out;
};

GroupedProduct::GroupedProduct(const cuda::Target& target, int64_t experts)
    : target_(target),
      arguments_(at::empty({kernels::kGroupedFields, experts},
                           at::TensorOptions().dtype(at::kLong).device(target.memory()))) {}

at::Tensor GroupedProduct::forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& counts) const {
  const at::Tensor rows = x.contiguous(), y = at::empty({x.size(0), weight.size(1)}, x.options());
  run({kernels::GroupedOp::forward, rows, weight, y, counts, weight.size(2), weight.size(1)});
  return y;
}

at::Tensor GroupedProduct::input_gradient(const at::Tensor& dy, const at::Tensor& weight,
                                          const at::Tensor& counts) const {
  const at::Tensor rows = dy.contiguous(), dx = at::empty({dy.size(0), weight.size(2)}, dy.options());
  run({kernels::GroupedOp::input_gradient, rows, weight, dx, counts, weight.size(2), weight.size(1)});
  return dx;
}

void GroupedProduct::add_weight_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x,
                                         const at::Tensor& counts) const {
  run({kernels::GroupedOp::weight_gradient, dy.contiguous(), x.contiguous(), gradient, counts, gradient.size(2),
       gradient.size(1)});
}

void GroupedProduct::run(const Call& call) const {
  const at::ScalarType type = call.a.scalar_type(), sum = call.c.scalar_type();
  MPX_ASSERT(call.b.scalar_type() == type && (sum == type || sum == nn::acc_type(type)), "a grouped product of ",
             at::toString(type), " and ", at::toString(call.b.scalar_type()), " into ", at::toString(sum));
  MPX_ASSERT(call.counts.numel() == arguments_.size(1), "counts of ", call.counts.numel(), " experts for ",
             arguments_.size(1));
  const int64_t experts = arguments_.size(1), rows = call.a.size(0);
  const bool adds = call.op == kernels::GroupedOp::weight_gradient;
  const kernels::GroupedSource source{operand(call.a), operand(call.b), operand(call.c), experts, rows};
  cuda::launch(target_, {"grouped_arguments", {&call.counts}, {&arguments_}}, kernels::grouped_arguments,
               kernels::grouped_arguments_cuda, integers(call.counts), source, integers(arguments_));
  const kernels::GroupedShape shape{call.op, experts, rows, call.in, call.out, sum == nn::acc_type(type)};
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(call.in) * static_cast<double>(call.out);
  nn::dispatch_element(type, [&](auto zero) {
    using T = decltype(zero);
    cuda::launch(target_,
                 {"grouped_product",
                  {&arguments_, &call.a, &call.b, adds ? &call.c : nullptr},
                  {&call.c},
                  {{"op", static_cast<int>(call.op)}},
                  flops},
                 kernels::grouped_product<T>, kernels::grouped_product_cuda<T>, integers(arguments_), shape);
  });
}

std::string product_name(const cuda::Target& target, at::ScalarType dtype) {
  std::string name;
  nn::dispatch_element(dtype, [&](auto zero) {
    name = kernels::grouped_choice(target.gpu(), kernels::kElementNumber<decltype(zero)>).name;
  });
  return name;
}

}  // namespace metroplex::moe
