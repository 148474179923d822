#include "nn/fused_attention.h"

#include <ATen/ATen.h>

#include <vector>

#include "base/round_up.h"

namespace metroplex::nn {
namespace {

// [b, heads, s, d] -> [b, s, heads, d], the kernels' layout.
at::Tensor sequence_second(const at::Tensor& x) { return x.transpose(1, 2); }

at::Tensor random_state(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kUInt64));
}

void sum_by_group(const at::Tensor& dx, const at::Tensor& expanded) {
  at::Tensor out = dx;
  at::sum_out(out, expanded.unflatten(-2, {dx.size(-2), expanded.size(-2) / dx.size(-2)}), {-2});
}

}  // namespace

std::pair<at::Tensor, at::Tensor> flash_on_meta(const FusedInputs& in) {
  const bool documents = in.q.dim() == 3;
  const int64_t heads = in.q.size(-2);
  const at::Tensor out = at::empty_like(in.q);
  const at::TensorOptions wide = in.q.options().dtype(at::kFloat);
  const at::Tensor logsumexp =
      documents ? at::empty({heads, in.q.size(0)}, wide) : at::empty({in.q.size(0), heads, in.q.size(1)}, wide);
  const at::Tensor state = random_state(in.q, {2}), unused = random_state(in.q, {});
  return {out, logsumexp};
}

FusedGradients flash_backward_on_meta(const FusedInputs& in, const FusedResult& result, const at::Tensor& documents) {
  constexpr int64_t kBlock = 128;  // queries per block; each document may add one partial block
  const int64_t heads = in.q.size(-2), d = in.q.size(-1), width = base::round_up(d, d <= 128 ? 32 : 64);
  const at::TensorOptions wide = in.q.options().dtype(at::kFloat);
  const at::Tensor dout = result.dout.contiguous(), out = result.out.contiguous();
  const at::Tensor dq = at::empty_like(in.q), dk = at::empty_like(in.k), dv = at::empty_like(in.v);
  const int64_t rows = documents.defined() ? in.q.size(0) + kBlock * (documents.numel() - 1)
                                           : in.q.size(0) * base::round_up(in.q.size(1), kBlock);
  const at::Tensor sums = at::empty({heads, rows}, wide), dq_wide = at::empty({rows, heads, width}, wide);
  if (in.k.size(-2) != heads) {
    std::vector<int64_t> sizes = in.k.sizes().vec();
    sizes[sizes.size() - 2] = heads;
    const at::Tensor all_dk = at::empty(sizes, in.k.options()), all_dv = at::empty(sizes, in.k.options());
    sum_by_group(dk, all_dk);
    sum_by_group(dv, all_dv);
  }
  return {dq, dk, dv};
}

std::pair<at::Tensor, at::Tensor> cudnn_on_meta(const FusedInputs& in) {
  const at::Tensor& q = in.q;
  const at::Tensor out = at::empty({q.size(2), q.size(0), q.size(1), in.v.size(3)}, q.options());
  const at::Tensor logsumexp = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  return {out.permute({1, 2, 0, 3}), logsumexp};
}

FusedGradients cudnn_backward_on_meta(const FusedInputs& in, const FusedResult&) {
  const FusedGradients gradients{at::empty_like(in.q), at::empty_like(in.k), at::empty_like(in.v)};
  const at::Tensor workspace = at::empty(in.q.sizes(), in.q.options().dtype(at::kFloat));
  return gradients;
}

std::pair<at::Tensor, at::Tensor> efficient_on_meta(const FusedInputs& in) {
  const int64_t b = in.q.size(0), heads = in.q.size(1), queries = in.q.size(2), d = in.q.size(3);
  const at::Tensor out = at::empty({b, queries, heads, d}, in.q.options());
  const at::Tensor logsumexp = at::empty({b, heads, base::round_up(queries, 32)}, in.q.options().dtype(at::kFloat));
  return {sequence_second(out), logsumexp};
}

// The fp32 kernels process tiles of 64 queries and 64 features; each tile of dq has a workspace with a lock.
FusedGradients efficient_backward_on_meta(const FusedInputs& in, const FusedResult& result) {
  constexpr int64_t kTile = 64, kLockBytes = 16;
  const int64_t b = in.q.size(0), heads = in.q.size(1),
                tiles = base::round_up(in.q.size(2), kTile) / kTile * (base::round_up(in.q.size(3), kTile) / kTile);
  const at::Tensor dout = sequence_second(result.dout).contiguous(), out = sequence_second(result.out);
  const auto make_gradient = [](const at::Tensor& x) { return at::empty(sequence_second(x).sizes(), x.options()); };
  const FusedGradients gradients{make_gradient(in.q), make_gradient(in.k), make_gradient(in.v)};
  const at::Tensor sums = (dout * out).sum(-1).transpose(-2, -1).contiguous();
  const at::Tensor workspace =
      at::empty({b * heads * tiles * (kTile * kTile * 4 + kLockBytes)}, in.q.options().dtype(at::kByte));
  return {sequence_second(gradients.q), sequence_second(gradients.k), sequence_second(gradients.v)};
}

}  // namespace metroplex::nn
