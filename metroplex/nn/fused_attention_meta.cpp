#include "nn/fused_attention.h"

#include <ATen/ATen.h>

#include "nn/wide.h"

namespace metroplex::nn {
namespace {

int64_t rounded_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// [b, s, heads, d] for [b, heads, s, d], as the kernels see it.
at::Tensor sequence_second(const at::Tensor& x) { return x.transpose(1, 2); }

// The random state that flash attention returns.
at::Tensor random_state(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kUInt64));
}

std::pair<at::Tensor, at::Tensor> flash_forward(const FusedInputs& in) {
  const at::Tensor out = at::empty_like(sequence_second(in.q));
  const at::Tensor logsumexp =
      at::empty({in.q.size(0), in.q.size(1), in.q.size(2)}, in.q.options().dtype(at::kFloat));
  const at::Tensor state = random_state(in.q, {2}), unused = random_state(in.q, {});
  return {sequence_second(out), logsumexp};
}

// The sum over the queries' heads that share a head of keys.
void sum_by_group(const at::Tensor& dx, const at::Tensor& expanded) {
  at::Tensor out = dx;
  at::sum_out(out, expanded.unflatten(2, {dx.size(2), expanded.size(2) / dx.size(2)}), {3});
}

FusedGradients flash_backward(const FusedInputs& in, const FusedResult& r) {
  const int64_t b = in.q.size(0), heads = in.q.size(1), d = in.q.size(3), queries = rounded_up(in.q.size(2), 128),
                width = rounded_up(d, d <= 128 ? 32 : 64);
  const at::TensorOptions wide = in.q.options().dtype(at::kFloat);
  const at::Tensor dout = sequence_second(r.dout).contiguous(), out = sequence_second(r.out).contiguous();
  const at::Tensor dq = at::empty_like(sequence_second(in.q)), dk = at::empty_like(sequence_second(in.k)),
                   dv = at::empty_like(sequence_second(in.v));
  const at::Tensor sums = at::empty({b, heads, queries}, wide), dq_wide = at::empty({b, queries, heads, width}, wide);
  if (in.k.size(1) != heads) {
    const at::Tensor all_dk = at::empty({b, in.k.size(2), heads, d}, in.k.options()),
                     all_dv = at::empty({b, in.k.size(2), heads, d}, in.k.options());
    sum_by_group(dk, all_dk);
    sum_by_group(dv, all_dv);
  }
  return {sequence_second(dq), sequence_second(dk), sequence_second(dv)};
}

std::pair<at::Tensor, at::Tensor> efficient_forward(const FusedInputs& in) {
  const int64_t b = in.q.size(0), heads = in.q.size(1), queries = in.q.size(2), d = in.q.size(3);
  const at::Tensor out = at::empty({b, queries, heads, d}, in.q.options());
  const at::Tensor logsumexp = at::empty({b, heads, rounded_up(queries, 32)}, in.q.options().dtype(at::kFloat));
  return {sequence_second(out), logsumexp};
}

// The kernels for fp32 take 64 queries and 64 features at once; each such tile of dq has room with a lock.
FusedGradients efficient_backward(const FusedInputs& in, const FusedResult& r) {
  constexpr int64_t kTile = 64, kLockBytes = 16;
  const int64_t b = in.q.size(0), heads = in.q.size(1),
                tiles = rounded_up(in.q.size(2), kTile) / kTile * (rounded_up(in.q.size(3), kTile) / kTile);
  const at::Tensor dout = sequence_second(r.dout).contiguous(), out = sequence_second(r.out);
  const auto room = [](const at::Tensor& x) { return at::empty(sequence_second(x).sizes(), x.options()); };
  const FusedGradients d{room(in.q), room(in.k), room(in.v)};
  const at::Tensor sums = (dout * out).sum(-1).transpose(-2, -1).contiguous();
  const at::Tensor workspace =
      at::empty({b * heads * tiles * (kTile * kTile * 4 + kLockBytes)}, in.q.options().dtype(at::kByte));
  return {sequence_second(d.q), sequence_second(d.k), sequence_second(d.v)};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> fused_attention_on_meta(const FusedInputs& in) {
  return is_half(in.q) ? flash_forward(in) : efficient_forward(in);
}

FusedGradients fused_attention_backward_on_meta(const FusedInputs& in, const FusedResult& result) {
  return is_half(in.q) ? flash_backward(in, result) : efficient_backward(in, result);
}

}  // namespace metroplex::nn
