#include "nn/blocked_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/error.h"
#include "cuda/kernels/blocked_attention.h"
#include "nn/fused_attention.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

namespace kernels = cuda::kernels;

kernels::AttentionRows rows_for_kernel(const Positions& rows) {
  return {rows.first, rows.rows.defined() ? static_cast<const int64_t*>(rows.rows.const_data_ptr()) : nullptr};
}

// The mask, and what its pointers point to.
struct Mask {
  kernels::AttentionShape shape;
  DropoutMask dropout;
  at::Tensor documents;
};

Mask mask_of(const CoreInputs& in, const CoreCall& call) {
  const CoreSpec& spec = call.spec;
  const Positions &of_queries = call.positions.queries, &of_keys = call.positions.keys;
  const at::Tensor& documents = call.batch.document_ids;
  const int64_t queries = in.q.size(0), b = in.q.size(1), heads = in.q.size(2), keys = in.k.size(0);
  const bool chosen = of_keys.rows.defined();
  Mask mask;
  kernels::AttentionShape& shape = mask.shape;
  shape.samples = b, shape.heads = heads, shape.groups = in.k.size(2);
  shape.queries = queries, shape.keys = keys;
  shape.head_dim = in.q.size(3), shape.v_head_dim = in.v.size(3), shape.softmax_scale = spec.softmax_scale;
  if (spec.window >= 0) shape.reach = spec.window;
  shape.softcap = spec.softcap;
  shape.query_rows = rows_for_kernel(of_queries);
  shape.key_rows = rows_for_kernel(of_keys);
  if (documents.defined()) {
    MPX_ASSERT(documents.scalar_type() == at::kLong, "document_ids are int64");
    mask.documents = documents.contiguous();
    const int64_t whole = chosen ? of_keys.whole : of_keys.first + keys;
    MPX_CHECK(mask.documents.size(1) == whole, "nn", "document_ids cover ", mask.documents.size(1),
              " positions, the attention sees ", whole);
    shape.documents = static_cast<const int64_t*>(mask.documents.const_data_ptr());
    shape.document_stride = whole;
  }
  mask.dropout = probability_mask({b, heads, queries, chosen ? of_keys.whole : keys}, spec.dropout,
                                  {spec.first_head, of_queries}, call.batch);
  shape.dropout = mask.dropout.shape;
  return mask;
}

// [s, b, heads, d], last stride 1.
template <class T>
kernels::AttentionOperand<T> operand(const at::Tensor& x) {
  MPX_ASSERT(x.stride(3) == 1 || x.size(3) <= 1, "blocked attention needs a last stride of 1");
  return {elements<std::remove_const_t<T>>(x), x.stride(0), x.stride(1), x.stride(2)};
}

struct Scratch {
  at::Tensor memory;  // of a CPU
  kernels::AttentionScratch shape;
};
Scratch make_scratch(const cuda::Target& target, const kernels::AttentionScratch& shape) {
  Scratch scratch{{}, shape};
  if (target.gpu()) return scratch;
  scratch.memory =
      at::empty({shape.bytes * shape.workers}, at::TensorOptions().dtype(at::kByte).device(target.memory()));
  if (!target.meta) scratch.shape.data = static_cast<char*>(scratch.memory.mutable_data_ptr());
  return scratch;
}

// Of products over the pairs that are not masked: `of_qk` with the head size of q and k, `of_v` with that of v.
double flops_of(const CoreInputs& in, const CoreCall& call, int64_t of_qk, int64_t of_v) {
  const CorePositions& positions = call.positions;
  const auto queries = static_cast<double>(in.q.size(0)), keys = static_cast<double>(in.k.size(0));
  // Of the keys of a zigzag part, its own or another's, its queries see half.
  const bool half = positions.queries.rows.defined() && positions.keys.rows.defined();
  const double pairs =
      plain_causal(in, positions) ? causal_pairs(queries, call.spec.window) : queries * keys * (half ? 0.5 : 1);
  return 2 * static_cast<double>(in.q.size(1) * in.q.size(2) * (of_qk * in.q.size(3) + of_v * in.v.size(3))) * pairs;
}

}  // namespace

bool plain_causal(const CoreInputs& in, const CorePositions& at) {
  return !at.queries.rows.defined() && !at.keys.rows.defined() && at.queries.first == at.keys.first &&
         in.q.size(0) == in.k.size(0);
}

CoreResult blocked_attention(const CoreInputs& in, const CoreCall& call) {
  const cuda::Target& target = call.spec.target;
  const Mask mask = mask_of(in, call);
  const at::Tensor out = at::empty({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, in.q.options());
  const at::Tensor logsumexp =
      at::empty({in.q.size(1), in.q.size(2), in.q.size(0)}, in.q.options().dtype(acc_type(in.q.scalar_type())));
  dispatch_element(in.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const kernels::AttentionForward<T> operands{operand<const T>(in.q), operand<const T>(in.k),
                                                operand<const T>(in.v), operand<T>(out),
                                                elements<kernels::Wide<T>>(logsumexp)};
    const Scratch scratch =
        make_scratch(target, kernels::attention_forward_scratch<T>(mask.shape, at::get_num_threads()));
    cuda::launch(target,
                 {"attention_forward",
                  {&in.q, &in.k, &in.v, &call.positions.queries.rows, &call.positions.keys.rows, &mask.documents,
                   &mask.dropout.counters},
                  {&out, &logsumexp},
                  {{"key", mask.shape.dropout.key}, {"probability", mask.shape.dropout.probability}},
                  flops_of(in, call, 1, 1),
                  {&scratch.memory}},
                 kernels::attention_forward<T>, kernels::attention_forward_cuda<T>, operands, mask.shape,
                 scratch.shape);
  });
  return {out, logsumexp};
}

CoreInputs blocked_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                      const CoreCall& call) {
  const cuda::Target& target = call.spec.target;
  const Mask mask = mask_of(in, call);
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const CoreInputs d{like(in.q), like(in.k), like(in.v)};
  const at::Tensor dy = dout.stride(3) == 1 ? dout : dout.contiguous();
  dispatch_element(in.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const kernels::AttentionBackward<T> operands{operand<const T>(in.q), operand<const T>(in.k),
                                                 operand<const T>(in.v), operand<const T>(result.out),
                                                 operand<const T>(dy),   elements<kernels::Wide<T>>(result.logsumexp),
                                                 operand<T>(d.q),        operand<T>(d.k),
                                                 operand<T>(d.v)};
    const Scratch scratch =
        make_scratch(target, kernels::attention_backward_scratch<T>(mask.shape, at::get_num_threads()));
    cuda::launch(target,
                 {"attention_backward",
                  {&in.q, &in.k, &in.v, &result.out, &dy, &result.logsumexp, &call.positions.queries.rows,
                   &call.positions.keys.rows, &mask.documents, &mask.dropout.counters},
                  {&d.q, &d.k, &d.v},
                  {{"key", mask.shape.dropout.key}, {"probability", mask.shape.dropout.probability}},
                  flops_of(in, call, 3, 2),
                  {&scratch.memory}},
                 kernels::attention_backward<T>, kernels::attention_backward_cuda<T>, operands, mask.shape,
                 scratch.shape);
  });
  return d;
}

}  // namespace metroplex::nn
