#include "nn/fused_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>

#include "base/error.h"

namespace metroplex::nn {
namespace {

at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  const int64_t b = x.size(0), groups = x.size(1), s = x.size(2), d = x.size(3);
  if (groups == heads) return x;
  return x.unsqueeze(2).expand({b, groups, heads / groups, s, d}).reshape({b, heads, s, d});
}

at::Tensor sum_heads(const at::Tensor& dx, int64_t groups) {
  return dx.size(1) == groups ? dx : dx.unflatten(1, {groups, dx.size(1) / groups}).sum(2);
}

// Copies x to the kernels' memory layout, contiguous [b, s, heads, d].
at::Tensor pack_rows(const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); }

// Placeholder random state: dropout is off.
struct NoDropout {
  at::Tensor seed, offset;
  explicit NoDropout(at::Device device)
      : seed(at::empty({2}, at::TensorOptions().dtype(at::kUInt64).device(device))),
        offset(at::empty({}, at::TensorOptions().dtype(at::kUInt64).device(device))) {}
};

using Result = std::pair<at::Tensor, at::Tensor>;

bool has_documents(const FusedSpec& spec) { return spec.documents.queries.defined(); }

// Flash attention's layout: [b, s, heads, d]; with documents, [b s, heads, d].
at::Tensor to_flash_layout(const at::Tensor& x, const FusedSpec& spec) {
  const at::Tensor rows = x.transpose(1, 2);
  return has_documents(spec) ? rows.flatten(0, 1) : rows;
}
FusedInputs to_flash_layout(const FusedInputs& in, const FusedSpec& spec) {
  return {to_flash_layout(in.q, spec), to_flash_layout(in.k, spec), to_flash_layout(in.v, spec)};
}
at::Tensor from_flash_layout(const at::Tensor& rows, const at::Tensor& like) {
  return (rows.dim() == 3 ? rows.unflatten(0, {like.size(0), like.size(2)}) : rows).transpose(1, 2);
}

// Mask arguments of flash attention other than `causal`, and sequence lengths.
struct FlashMask {
  DocumentRows offsets;  // int32; undefined: no documents
  std::optional<int64_t> window;
  int64_t queries, keys;

  FlashMask(const FusedInputs& in, const FusedSpec& spec) : queries(in.q.size(2)), keys(in.k.size(2)) {
    if (spec.window >= 0) window = spec.window;
    if (!has_documents(spec)) return;
    const auto& [query_offsets, key_offsets] = spec.documents;
    offsets.queries = query_offsets.to(at::kInt);
    offsets.keys = key_offsets.is_same(query_offsets) ? offsets.queries : key_offsets.to(at::kInt);
    queries = std::max<int64_t>(2, queries);  // for 1 query per document the operator would reorder heads
  }
  static std::optional<at::Tensor> to_optional(const at::Tensor& x) {
    return x.defined() ? std::optional(x) : std::nullopt;
  }
};

// With documents the operator returns [heads, b s], with +inf for a query that sees no key.
at::Tensor logsumexp_by_samples(const at::Tensor& sums, int64_t samples, const FusedSpec& spec) {
  if (!has_documents(spec)) return sums;
  const at::Tensor by_samples = sums.unflatten(1, {samples, sums.size(1) / samples}).transpose(0, 1);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return spec.causal ? by_samples : by_samples.masked_fill(by_samples == kInfinity, -kInfinity);
}
at::Tensor logsumexp_by_rows(const at::Tensor& by_samples, const FusedSpec& spec) {
  return has_documents(spec) ? by_samples.transpose(0, 1).flatten(1).contiguous() : by_samples.contiguous();
}

Result flash(const device::Target& target, const FusedInputs& in, const FusedSpec& spec) {
  const FusedInputs rows = to_flash_layout(in, spec);
  const FlashMask mask(in, spec);
  const auto [out, logsumexp] = [&]() -> Result {
    if (target.meta) return flash_on_meta(rows);
    const auto result =
        at::_flash_attention_forward(rows.q, rows.k, rows.v, FlashMask::to_optional(mask.offsets.queries),
                                     FlashMask::to_optional(mask.offsets.keys), mask.queries, mask.keys, 0.0,
                                     spec.causal, /*return_debug_mask=*/false, spec.softmax_scale, mask.window);
    return {std::get<0>(result), std::get<1>(result)};
  }();
  return {from_flash_layout(out, in.q), logsumexp_by_samples(logsumexp, in.q.size(0), spec)};
}

FusedGradients flash_backward(const device::Target& target, const FusedInputs& in, const FusedResult& result,
                              const FusedSpec& spec) {
  const FusedInputs rows = to_flash_layout(in, spec);
  const FusedResult packed_result{to_flash_layout(pack_rows(result.out), spec),
                                  logsumexp_by_rows(result.logsumexp, spec), to_flash_layout(result.dout, spec)};
  const FlashMask mask(in, spec);
  const NoDropout none(in.q.device());
  const FusedGradients gradients = [&]() -> FusedGradients {
    if (target.meta) return flash_backward_on_meta(rows, packed_result, mask.offsets.queries);
    auto [dq, dk, dv] = at::_flash_attention_backward(packed_result.dout, rows.q, rows.k, rows.v, packed_result.out,
                                                      packed_result.logsumexp, mask.offsets.queries,
                                                      mask.offsets.keys, mask.queries, mask.keys, 0.0, spec.causal,
                                                      none.seed, none.offset, spec.softmax_scale, mask.window);
    return {dq, dk, dv};
  }();
  return {from_flash_layout(gradients.q, in.q), from_flash_layout(gradients.k, in.k),
          from_flash_layout(gradients.v, in.v)};
}

Result cudnn(const device::Target& target, const FusedInputs& in, const FusedSpec& spec) {
  if (target.meta) return cudnn_on_meta(in);
  const auto result =
      at::_scaled_dot_product_cudnn_attention(in.q, in.k, in.v, std::nullopt, /*compute_log_sumexp=*/true, 0.0,
                                              spec.causal, /*return_debug_mask=*/false, spec.softmax_scale);
  return {std::get<0>(result), std::get<1>(result).flatten(2)};
}

// The operator requires `out` and `dout` with equal strides, and logsumexp [b, heads, s_q, 1].
FusedGradients cudnn_backward(const device::Target& target, const FusedInputs& in, const FusedResult& result,
                              const FusedSpec& spec) {
  const bool same_strides = result.out.strides() == result.dout.strides();
  const FusedResult packed_result{same_strides ? result.out : pack_rows(result.out), result.logsumexp,
                                  same_strides ? result.dout : pack_rows(result.dout)};
  const NoDropout none(in.q.device());
  if (target.meta) return cudnn_backward_on_meta(in, packed_result);
  auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      packed_result.dout, in.q, in.k, in.v, packed_result.out, packed_result.logsumexp.contiguous().unsqueeze(3),
      none.seed, none.offset, {}, {}, {}, in.q.size(2), in.k.size(2), 0.0, spec.causal, spec.softmax_scale);
  return {dq, dk, dv};
}

Result efficient(const device::Target& target, const FusedInputs& in, const FusedSpec& spec) {
  const int64_t heads = in.q.size(1);
  const FusedInputs expanded{in.q, repeat_heads(in.k, heads), repeat_heads(in.v, heads)};
  if (target.meta) return efficient_on_meta(expanded);
  const auto result =
      at::_scaled_dot_product_efficient_attention(expanded.q, expanded.k, expanded.v, std::nullopt,
                                                  /*compute_log_sumexp=*/true, 0.0, spec.causal, spec.softmax_scale);
  return {std::get<0>(result), std::get<1>(result)};
}

FusedGradients efficient_backward(const device::Target& target, const FusedInputs& in, const FusedResult& result,
                                  const FusedSpec& spec) {
  const FusedGradients gradients = [&]() -> FusedGradients {
    const NoDropout none(in.q.device());
    const int64_t heads = in.q.size(1);
    const FusedInputs expanded{in.q, repeat_heads(in.k, heads), repeat_heads(in.v, heads)};
    const FusedResult packed_result{pack_rows(result.out), result.logsumexp, result.dout};
    if (target.meta) return efficient_backward_on_meta(expanded, packed_result);
    auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
        packed_result.dout, expanded.q, expanded.k, expanded.v, {}, packed_result.out, packed_result.logsumexp,
        none.seed, none.offset, 0.0, {true, true, true, false}, spec.causal, spec.softmax_scale);
    return {dq, dk, dv};
  }();
  const int64_t groups = in.k.size(1);
  return {gradients.q, sum_heads(gradients.k, groups), sum_heads(gradients.v, groups)};
}

struct Operator {
  config::AttentionBy by;
  const char *forward, *backward;  // names for the recorder
  Result (*run)(const device::Target&, const FusedInputs&, const FusedSpec&);
  FusedGradients (*run_backward)(const device::Target&, const FusedInputs&, const FusedResult&, const FusedSpec&);
};
constexpr Operator kOperators[] = {
    {config::AttentionBy::flash, "attention_flash", "attention_flash_backward", flash, flash_backward},
    {config::AttentionBy::cudnn, "attention_cudnn", "attention_cudnn_backward", cudnn, cudnn_backward},
    {config::AttentionBy::memory_efficient, "attention_efficient", "attention_efficient_backward", efficient,
     efficient_backward}};

const Operator& find_operator(const FusedInputs& in, const FusedSpec& spec) {
  MPX_ASSERT(spec.by == config::AttentionBy::flash || (spec.window < 0 && !has_documents(spec)),
             "windows or documents in an operator that has none");
  MPX_ASSERT(spec.causal || spec.window < 0 || in.q.size(2) <= in.k.size(2),
             "a window that is not causal of fewer keys than queries");
  for (const Operator& candidate : kOperators) {
    if (candidate.by == spec.by) return candidate;
  }
  MPX_ASSERT(false, "metroplex's own attention has no libtorch kernel");
  return kOperators[0];
}

// Pairs hidden by a window without a causal mask: query i does not see the first i + keys - queries - window keys.
double hidden_pairs(double queries, double keys, int64_t window) {
  const double max_hidden = window < 0 ? 0 : std::max(0.0, keys - 1 - static_cast<double>(window)),
               lines = std::min(max_hidden, queries);
  return lines * (2 * max_hidden - lines + 1) / 2;
}

// FLOPs of products over visible (query, key) pairs: `num_qk` products with the head size of q and k, `num_v` with
// that of v.
double count_pair_flops(const FusedInputs& in, const FusedSpec& spec, int64_t num_qk, int64_t num_v) {
  const auto queries = static_cast<double>(in.q.size(2)), keys = static_cast<double>(in.k.size(2));
  const double pairs =
      spec.causal ? causal_pairs(queries, spec.window) : queries * keys - hidden_pairs(queries, keys, spec.window);
  return 2 * static_cast<double>(in.q.size(0) * in.q.size(1) * (num_qk * in.q.size(3) + num_v * in.v.size(3))) *
         pairs;
}

}  // namespace

double causal_pairs(double rows, int64_t window) {
  const double seen = static_cast<double>(window) + 1;
  return window < 0 || seen >= rows ? rows * rows / 2 : rows * seen - seen * (seen - 1) / 2;
}

std::pair<at::Tensor, at::Tensor> fused_attention(const device::Target& target, const FusedInputs& in,
                                                  const FusedSpec& spec) {
  const Operator& by = find_operator(in, spec);
  const Result result = by.run(target, in, spec);
  device::issued(target, {by.forward,
                          {&in.q, &in.k, &in.v, &spec.documents.queries, &spec.documents.keys},
                          {&result.first, &result.second},
                          {},
                          count_pair_flops(in, spec, 1, 1)});
  return result;
}

FusedGradients fused_attention_backward(const device::Target& target, const FusedInputs& in,
                                        const FusedResult& result, const FusedSpec& spec) {
  const Operator& by = find_operator(in, spec);
  const FusedGradients gradients = by.run_backward(target, in, result, spec);
  device::issued(target, {by.backward,
                          {&in.q, &in.k, &in.v, &result.out, &result.logsumexp, &result.dout, &spec.documents.queries,
                           &spec.documents.keys},
                          {&gradients.q, &gradients.k, &gradients.v},
                          {},
                          count_pair_flops(in, spec, 3, 2)});
  return gradients;
}

}  // namespace metroplex::nn
