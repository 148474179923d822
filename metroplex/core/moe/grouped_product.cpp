#include "moe/grouped_product.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "kernels/grouped_choice.h"
#include "kernels/grouped_product.h"
#include "moe/grouped_library.h"
#include "nn/wide.h"

namespace metroplex::moe {

namespace {

const void* address(const at::Tensor& x) { return !x.defined() || x.is_meta() ? nullptr : x.const_data_ptr(); }

kernels::GroupedOperand operand(const GroupedWeights& x) {
  const at::Tensor& home = x.home;
  MPX_ASSERT(home.is_contiguous() && (!x.replicas.defined() || x.replicas.is_contiguous()),
             "a grouped product of a strided tensor");
  const int64_t stack = home.dim() == 3 ? home.size(1) * home.size(2) : 0;
  return {address(home),
          home.size(-1),
          stack,
          static_cast<int64_t>(home.element_size()),
          address(x.replicas),
          static_cast<const float*>(address(x.factors))};
}

int64_t replica_count(const GroupedWeights& x) { return x.replicas.defined() ? x.replicas.size(0) : 0; }

void check_stack(const GroupedWeights& x, int64_t groups) {
  MPX_ASSERT(x.home.size(0) + replica_count(x) == groups, x.home.size(0), " weights and ", replica_count(x),
             " replicas for ", groups, " groups");
  MPX_ASSERT(!x.replicas.defined() || (x.replicas.scalar_type() == x.home.scalar_type() &&
                                       x.replicas.sizes().slice(1) == x.home.sizes().slice(1)),
             "replicas of ", x.replicas.sizes(), " with weights of ", x.home.sizes());
}

void check_factors(const at::Tensor& factors, int64_t groups) {
  MPX_ASSERT(!factors.defined() || (factors.scalar_type() == at::kFloat && factors.is_contiguous() &&
                                    factors.sizes() == at::IntArrayRef{groups}),
             "factors of ", factors.sizes(), " for ", groups, " groups");
}

int64_t* integers(const at::Tensor& x) { return static_cast<int64_t*>(x.mutable_data_ptr()); }

}  // namespace

GroupedProduct::GroupedProduct(const device::Target& target, int64_t groups, int capability, double fill)
    : target_(target),
      capability_(capability >= 0 ? capability : target.capability()),
      fill_(fill),
      arguments_(at::empty({kernels::kGroupedFields, groups},
                           at::TensorOptions().dtype(at::kLong).device(target.memory()))) {}

bool GroupedProduct::by_library(const GroupedWeights& of_rows, const GroupedWeights& stack, bool reads) const {
  const at::Tensor& rows = of_rows.home;
  return !of_rows.factors.defined() && !stack.factors.defined() &&
         library_multiplies({target_.gpu(), capability_, rows.scalar_type(), stack.home.size(2), stack.home.size(1),
                             reads && stack.replicas.defined(), rows.size(0) / arguments_.size(1)});
}

GroupCounts GroupedProduct::with_ends(const at::Tensor& counts, int64_t rows, at::ScalarType type) const {
  if (!library_has(target_.gpu(), capability_, type)) return counts;
  return {counts, group_ends(target_, counts, rows)};
}

at::Tensor GroupedProduct::rows(kernels::GroupedOp op, const GroupedWeights& of_rows, const GroupedWeights& weights,
                                const GroupCounts& counts) const {
  const at::Tensor& rows = of_rows.home;
  if (by_library(of_rows, weights, true)) return library_rows(target_, op, rows, weights, counts, fill_);
  const int64_t width = weights.home.size(op == kernels::GroupedOp::forward ? 1 : 2);
  const at::Tensor out = at::empty({rows.size(0), width}, rows.options());
  run(op, of_rows, weights, out, counts);
  return out;
}

void GroupedProduct::run(kernels::GroupedOp op, const GroupedWeights& of_a, const GroupedWeights& of_b,
                         const GroupedWeights& of_c, const GroupCounts& group_counts, bool adds) const {
  const at::Tensor& counts = group_counts.counts;
  const at::Tensor &a = of_a.home, &b = of_b.home, &c = of_c.home;
  const at::ScalarType type = a.scalar_type(), sum = c.scalar_type();
  MPX_ASSERT(b.scalar_type() == type && (sum == type || sum == nn::acc_type(type)), "a grouped product of ",
             at::toString(type), " and ", at::toString(b.scalar_type()), " into ", at::toString(sum));
  const int64_t groups = arguments_.size(1), rows = a.size(0);
  MPX_ASSERT(counts.numel() == groups, "counts of ", counts.numel(), " groups for ", groups);
  const bool gradient = op == kernels::GroupedOp::weight_gradient;
  const GroupedWeights& stack = gradient ? of_c : of_b;
  check_stack(stack, groups);
  check_factors(of_a.factors, groups), check_factors(of_b.factors, groups);
  // The library's weight gradients are bf16. An fp32 gradient would need another pass, which rounds it first.
  if (gradient && sum == type && by_library(of_b, of_c, false) && !of_a.factors.defined()) {
    constexpr int kWritesAll = 100;  // below sm_100 the library also zeroes groups without rows
    return put_library_weight_gradient(target_, {of_c, adds, capability_ >= kWritesAll, fill_}, a, b, group_counts);
  }
  const int64_t out = stack.home.size(1), in = stack.home.size(2);
  kernels::GroupedSource source{operand(of_a), operand(of_b), operand(of_c), groups, rows, replica_count(stack)};
  source.adds = adds;
  device::launch(target_, {"grouped_arguments", {&counts, &of_a.factors, &of_b.factors}, {&arguments_}},
                 kernels::grouped_arguments, kernels::grouped_arguments_cuda, integers(counts), source,
                 integers(arguments_));
  const kernels::GroupedShape shape{op, groups, rows, in, out, sum == nn::acc_type(type)};
  const double flops = 2.0 * fill_ * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  nn::dispatch_element(type, [&](auto zero) {
    using T = decltype(zero);
    device::launch(target_,
                   {"grouped_product",
                    {&arguments_, &a, &b, &of_b.replicas, gradient && adds ? &c : nullptr},
                    {&c, &of_c.replicas},
                    {{"op", static_cast<int>(op)}},
                    flops},
                   kernels::grouped_product<T>, kernels::grouped_product_cuda<T>, integers(arguments_), shape);
  });
}

}  // namespace metroplex::moe
