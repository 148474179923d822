#include "nn/fused_attention_meta.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>

#include "nn/wide.h"

namespace metroplex::nn {
namespace {

bool half(const at::Tensor& x) { return wide_type(x.scalar_type()) != x.scalar_type(); }

int64_t rounded_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

at::TensorOptions wide_options(const at::Tensor& x) { return x.options().dtype(wide_type(x.scalar_type())); }

// [b, s, heads, d] for [b, heads, s, d], as the kernels see it.
at::Tensor sequence_second(const at::Tensor& x) { return x.transpose(1, 2); }

// The blocks of the CPU's kernel: queries and keys that a thread takes at once.
struct CpuBlocks {
  int64_t queries, keys;
};
CpuBlocks cpu_blocks(int64_t queries, int64_t keys) {
  const int64_t split = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
  return {std::min(split, queries), std::min<int64_t>(512, keys)};
}

int64_t even(int64_t x) { return x + x % 2; }

// Whether oneDNN gets keys and values packed: half types, where the products are many for what is packed.
bool cpu_packs(const FusedInputs& in, bool causal) {
  const int64_t heads = in.q.size(1), queries = in.q.size(2), keys = in.k.size(2), threads = at::get_num_threads();
  const bool bf16 = in.q.scalar_type() == at::kBFloat16;
  if (!half(in.q) || !at::native::cpublas::could_pack(in.q.scalar_type())) return false;
  if (std::min(queries, keys) < (bf16 ? 64 : 16)) return false;
  const int64_t block = cpu_blocks(queries, keys).queries, blocks = (queries + block - 1) / block;
  const auto blocks_of_a_thread = static_cast<double>((in.q.size(0) * heads * blocks + threads - 1) / threads);
  const auto seen = static_cast<double>(causal ? std::min(queries, keys) : keys);
  const double packed = static_cast<double>(in.q.size(0) * in.k.size(1) * keys);
  return blocks_of_a_thread * static_cast<double>(block) * seen / packed >= (bf16 ? 4 : 1);
}

struct Packed {
  at::Tensor keys, values, queries;
};
Packed cpu_pack(const FusedInputs& in, const CpuBlocks& block) {
  const int64_t b = in.k.size(0), groups = in.k.size(1), keys = in.k.size(2), d = in.q.size(3),
                threads = at::get_num_threads();
  const int64_t tail = (keys - 1) % block.keys + 1, padded = (keys - 1) / block.keys * even(block.keys) + even(tail);
  Packed packed;
  packed.keys = at::empty({b, groups, even(d), keys}, in.k.options());
  packed.values = at::empty({b, groups, padded, d}, in.v.options());
  if (d % 2 != 0) packed.queries = at::empty({threads, block.queries, even(d)}, in.q.options());
  const at::Tensor turned = at::empty({threads, block.keys, d}, in.k.options());
  return packed;
}

std::pair<at::Tensor, at::Tensor> cpu_forward(const FusedInputs& in, bool causal) {
  const int64_t b = in.q.size(0), heads = in.q.size(1), queries = in.q.size(2), d = in.q.size(3),
                threads = at::get_num_threads();
  const CpuBlocks block = cpu_blocks(queries, in.k.size(2));
  const bool packs = cpu_packs(in, causal);
  const at::Tensor out = at::empty_like(in.q);
  const at::Tensor logsumexp = at::empty({b, queries, heads}, wide_options(in.q));
  const at::Tensor scores =
      at::empty({threads, block.queries * block.keys + 2 * block.queries + block.queries * d}, wide_options(in.q));
  const int64_t row = packs ? even(block.keys) : block.keys;
  const at::Tensor narrow = at::empty({threads, block.queries, half(in.q) ? row : 0}, in.q.options());
  const Packed packed = packs ? cpu_pack(in, block) : Packed{};
  return {out, sequence_second(logsumexp)};
}

FusedGradients cpu_backward(const FusedInputs& in, const FusedResult& r) {
  const auto zeros = [](const at::Tensor& x) { return at::zeros(sequence_second(x).sizes(), x.options()); };
  const FusedGradients d{zeros(in.q), zeros(in.k), zeros(in.v)};
  const CpuBlocks block = cpu_blocks(in.q.size(2), in.k.size(2));
  const int64_t threads = at::get_num_threads(), both = 2 * block.queries * block.keys;
  const at::Tensor dout = sequence_second(r.dout).contiguous();
  const at::Tensor scores = at::empty({threads, both}, wide_options(in.q));
  const at::Tensor narrow = at::empty({threads, half(in.q) ? both : 0}, in.q.options());
  const at::Tensor sums =
      at::empty({std::min(threads, in.q.size(0) * in.q.size(1)), block.queries}, wide_options(in.q));
  return {sequence_second(d.q), sequence_second(d.k), sequence_second(d.v)};
}

// What flash attention would have drawn from.
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

std::pair<at::Tensor, at::Tensor> fused_attention_on_meta(const cuda::Target& target, const FusedInputs& in,
                                                          bool causal) {
  if (!target.gpu()) return cpu_forward(in, causal);
  return half(in.q) ? flash_forward(in) : efficient_forward(in);
}

FusedGradients fused_attention_backward_on_meta(const cuda::Target& target, const FusedInputs& in,
                                                const FusedResult& result) {
  if (!target.gpu()) return cpu_backward(in, result);
  return half(in.q) ? flash_backward(in, result) : efficient_backward(in, result);
}

}  // namespace metroplex::nn
