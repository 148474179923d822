#include "nn/fused_attention.h"

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

// k or v with each head repeated for the query heads that share it.
at::Tensor repeated(const at::Tensor& x, int64_t heads) {
  const int64_t b = x.size(0), groups = x.size(1), s = x.size(2), d = x.size(3);
  if (groups == heads) return x;
  return x.unsqueeze(2).expand({b, groups, heads / groups, s, d}).reshape({b, heads, s, d});
}

at::Tensor summed_by_group(const at::Tensor& dx, int64_t groups) {
  return dx.size(1) == groups ? dx : dx.unflatten(1, {groups, dx.size(1) / groups}).sum(2);
}

// In the memory layout that the kernels want: [b, s, heads, d], contiguous.
at::Tensor packed(const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); }

// Arguments for the random state of dropout, which is off here.
struct NoDropout {
  at::Tensor seed, offset;
  explicit NoDropout(at::Device device)
      : seed(at::empty({2}, at::TensorOptions().dtype(at::kUInt64).device(device))),
        offset(at::empty({}, at::TensorOptions().dtype(at::kUInt64).device(device))) {}
};

FusedGradients flash_backward(const cuda::Target& target, const FusedInputs& in, const FusedResult& r,
                              const FusedSpec& spec) {
  const FusedResult left{packed(r.out), r.logsumexp, r.dout};
  const NoDropout none(in.q.device());
  if (target.meta) return fused_attention_backward_on_meta(in, left);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      left.dout, in.q, in.k, in.v, left.out, left.logsumexp, {}, {}, in.q.size(2), in.k.size(2), 0.0, spec.causal,
      none.seed, none.offset, spec.softmax_scale);
  return {dq, dk, dv};
}

FusedGradients efficient_backward(const cuda::Target& target, const FusedInputs& in, const FusedResult& r,
                                  const FusedSpec& spec) {
  const FusedGradients d = [&]() -> FusedGradients {
    const NoDropout none(in.q.device());
    const int64_t heads = in.q.size(1);
    const FusedInputs whole{in.q, repeated(in.k, heads), repeated(in.v, heads)};
    const FusedResult left{packed(r.out), r.logsumexp, r.dout};
    if (target.meta) return fused_attention_backward_on_meta(whole, left);
    auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
        left.dout, whole.q, whole.k, whole.v, {}, left.out, left.logsumexp, none.seed, none.offset, 0.0,
        {true, true, true, false}, spec.causal, spec.softmax_scale);
    return {dq, dk, dv};
  }();
  const int64_t groups = in.k.size(1);
  return {d.q, summed_by_group(d.k, groups), summed_by_group(d.v, groups)};
}

std::pair<at::Tensor, at::Tensor> forward(const cuda::Target& target, const FusedInputs& in, const FusedSpec& spec) {
  MPX_ASSERT(target.gpu() && fused_on_gpu(in.q),
             "libtorch's fused attention has no GPU operator for this query tensor");
  if (is_half(in.q)) {
    if (target.meta) return fused_attention_on_meta(in);
    const auto result = at::_scaled_dot_product_flash_attention(in.q, in.k, in.v, 0.0, spec.causal,
                                                                /*return_debug_mask=*/false, spec.softmax_scale);
    return {std::get<0>(result), std::get<1>(result)};
  }
  const int64_t heads = in.q.size(1);
  const FusedInputs whole{in.q, repeated(in.k, heads), repeated(in.v, heads)};
  if (target.meta) return fused_attention_on_meta(whole);
  const auto result =
      at::_scaled_dot_product_efficient_attention(whole.q, whole.k, whole.v, std::nullopt,
                                                  /*compute_log_sumexp=*/true, 0.0, spec.causal, spec.softmax_scale);
  return {std::get<0>(result), std::get<1>(result)};
}

FusedGradients backward(const cuda::Target& target, const FusedInputs& in, const FusedResult& r,
                        const FusedSpec& spec) {
  return is_half(in.q) ? flash_backward(target, in, r, spec) : efficient_backward(target, in, r, spec);
}

// Of forward: two products over the pairs of query and key that are not masked.
double flops_of(const FusedInputs& in, bool causal) {
  const double pairs = static_cast<double>(in.q.size(2)) * static_cast<double>(in.k.size(2)) * (causal ? 0.5 : 1);
  return 4 * static_cast<double>(in.q.size(0) * in.q.size(1) * in.q.size(3)) * pairs;
}

}  // namespace

bool fused_on_gpu(const at::Tensor& q) {
  const int64_t d = q.size(-1);
  return (is_half(q) || q.scalar_type() == at::kFloat) && d % 8 == 0 && d <= 256;
}

std::pair<at::Tensor, at::Tensor> fused_attention(const cuda::Target& target, const FusedInputs& in,
                                                  const FusedSpec& spec) {
  const auto result = forward(target, in, spec);
  cuda::issued(
      target,
      {"fused_attention", {&in.q, &in.k, &in.v}, {&result.first, &result.second}, {}, flops_of(in, spec.causal)});
  return result;
}

FusedGradients fused_attention_backward(const cuda::Target& target, const FusedInputs& in, const FusedResult& r,
                                        const FusedSpec& spec) {
  const FusedGradients d = backward(target, in, r, spec);
  constexpr double kProductsOfBackward = 5.0 / 2;
  cuda::issued(target, {"fused_attention_backward",
                        {&in.q, &in.k, &in.v, &r.out, &r.logsumexp, &r.dout},
                        {&d.q, &d.k, &d.v},
                        {},
                        kProductsOfBackward * flops_of(in, spec.causal)});
  return d;
}

}  // namespace metroplex::nn
