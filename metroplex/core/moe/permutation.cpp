#include "moe/permutation.h"

#include <ATen/ops/empty.h>
#include <ATen/core/grad_mode.h>

#include "nn/autograd_node.h"
#include "kernels/permutation.h"
#include "nn/wide.h"

namespace metroplex::moe {
namespace {

Permutation empty_permutation(at::IntArrayRef rows, int64_t num_rows, int64_t num_experts, const at::Tensor& like) {
  const at::TensorOptions integers = like.options().dtype(at::kLong);
  return {at::empty(rows, integers), at::empty({num_rows}, integers), at::empty({num_experts}, integers)};
}

kernels::PermutationPlan make_plan(const Permutation& permutation) {
  const auto write = [](const at::Tensor& x) { return static_cast<int64_t*>(x.mutable_data_ptr()); };
  return {write(permutation.rows), write(permutation.source), write(permutation.counts)};
}

const int64_t* row_numbers(const at::Tensor& x) { return static_cast<const int64_t*>(x.const_data_ptr()); }

// gather and sum run without autograd on contiguous tensors. x [rows / divisor, width] -> [R, width]; with probs
// [rows], which may be undefined, -> [R].
PermutedRows gather(const device::Target& target, const at::Tensor& x, const at::Tensor& probs,
                    const at::Tensor& source, int64_t divisor) {
  const int64_t rows = source.numel(), width = x.size(-1);
  PermutedRows out{at::empty({rows, width}, x.options()),
                   probs.defined() ? at::empty({rows}, probs.options()) : at::Tensor()};
  kernels::RowNumbers numbers;
  if (probs.defined())
    numbers = {probs.const_data_ptr(), out.probs.mutable_data_ptr(), static_cast<int>(probs.element_size())};
  nn::dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"permute_rows", {&x, &probs, &source}, {&out.x, &out.probs}}, kernels::permute_rows<T>,
                   kernels::permute_rows_cuda<T>, static_cast<const T*>(nn::elements<T>(x)), row_numbers(source),
                   nn::elements<T>(out.x), kernels::RowsShape{rows, width, divisor}, numbers);
  });
  return out;
}

at::Tensor sum(const device::Target& target, const at::Tensor& x, const at::Tensor& rows, int64_t tokens) {
  const int64_t width = x.size(-1), terms = tokens > 0 ? rows.numel() / tokens : 0;
  at::Tensor out = at::empty({tokens, width}, x.options());
  nn::dispatch_element(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    device::launch(target, {"sum_rows", {&x, &rows}, {&out}}, kernels::sum_rows<T>, kernels::sum_rows_cuda<T>,
                   static_cast<const T*>(nn::elements<T>(x)), row_numbers(rows), nn::elements<T>(out),
                   kernels::SumShape{tokens, terms, width});
  });
  return out;
}

at::Tensor packed(const at::Tensor& x) { return x.detach().contiguous(); }

}  // namespace

Permutation permutation(const device::Target& target, const at::Tensor& experts, const PermuteHow& how) {
  const at::NoGradGuard no_grad;
  const at::Tensor chosen = packed(experts);
  Permutation permutation =
      empty_permutation({chosen.size(0), chosen.size(1) * how.copies}, how.num_rows, how.num_experts, chosen);
  const kernels::PermutationShape shape{
      chosen.numel(), how.num_rows, how.first, how.num_experts, how.chunk > 0 ? how.chunk : how.num_experts,
      how.copies,     how.capacity};
  permutation.divisor = chosen.size(1);
  device::launch(
      target, {"plan_permutation", {&chosen}, {&permutation.rows, &permutation.source, &permutation.counts}},
      kernels::plan_permutation, kernels::plan_permutation_cuda, row_numbers(chosen), make_plan(permutation), shape);
  return permutation;
}

Permutation regroup(const device::Target& target, const at::Tensor& table, const RegroupHow& how) {
  const at::NoGradGuard no_grad;
  const at::Tensor came = packed(table);
  const Permutation permutation = empty_permutation({how.num_in, 1}, how.num_out, came.size(1), came);
  const kernels::RegroupShape shape{came.size(0), came.size(1), how.capacity, how.num_in, how.num_out};
  device::launch(target, {"plan_regroup", {&came}, {&permutation.rows, &permutation.source, &permutation.counts}},
                 kernels::plan_regroup, kernels::plan_regroup_cuda, row_numbers(came), make_plan(permutation), shape);
  return permutation;
}

PermutedRows permute(const device::Target& target, const at::Tensor& x, const at::Tensor& probs,
                     const Permutation& permutation) {
  PermutedRows out;
  {
    const at::NoGradGuard no_grad;
    out = gather(target, packed(x), probs.defined() ? packed(probs) : probs, permutation.source, permutation.divisor);
  }
  const at::Tensor& rows = permutation.rows;
  out.x = nn::attach(out.x, {x}, [target, rows, tokens = x.size(0)](const at::Tensor& dy) -> nn::Gradients {
    const at::NoGradGuard no_grad;
    return {sum(target, dy.contiguous(), rows, tokens)};
  });
  if (!probs.defined()) return out;
  out.probs = nn::attach(
      out.probs, {probs}, [target, rows, sizes = probs.sizes().vec()](const at::Tensor& dy) -> nn::Gradients {
        const at::NoGradGuard no_grad;
        return {sum(target, dy.contiguous().view({-1, 1}), rows, c10::multiply_integers(sizes)).view(sizes)};
      });
  return out;
}

at::Tensor unpermute(const device::Target& target, const at::Tensor& y, const Permutation& permutation) {
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = sum(target, packed(y), permutation.rows, permutation.rows.size(0));
  }
  return nn::attach(
      out, {y},
      [target, source = permutation.source, divisor = permutation.divisor](const at::Tensor& dy) -> nn::Gradients {
        const at::NoGradGuard no_grad;
        return {gather(target, dy.contiguous(), {}, source, divisor).x};
      });
}

}  // namespace metroplex::moe
