#include "nn/blocked_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/error.h"
#include "cuda/kernels/blocked_attention.h"
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

Mask mask_of(const CoreInputs& in, const CoreSpec& spec, const Microbatch& batch) {
  const int64_t queries = in.q.size(0), b = in.q.size(1), heads = in.q.size(2), keys = in.k.size(0);
  const bool chosen = spec.keys.rows.defined();
  Mask mask;
  kernels::AttentionShape& shape = mask.shape;
  shape.samples = b, shape.heads = heads, shape.groups = in.k.size(2), shape.dim = in.q.size(3);
  shape.queries = queries, shape.keys = keys;
  shape.query_rows = rows_for_kernel(spec.queries);
  shape.key_rows = rows_for_kernel(spec.keys);
  if (batch.document_ids.defined()) {
    MPX_ASSERT(batch.document_ids.scalar_type() == at::kLong, "document_ids are int64");
    mask.documents = batch.document_ids.contiguous();
    const int64_t whole = chosen ? spec.keys.whole : spec.keys.first + keys;
    MPX_CHECK(mask.documents.size(1) == whole, "nn", "document_ids cover ", mask.documents.size(1),
              " positions, the attention sees ", whole);
    shape.documents = static_cast<const int64_t*>(mask.documents.const_data_ptr());
    shape.document_stride = whole;
  }
  mask.dropout = probability_mask({b, heads, queries, chosen ? spec.keys.whole : keys}, spec.dropout,
                                  {spec.first_head, spec.queries}, batch);
  shape.dropout = mask.dropout.shape;
  return mask;
}

// [s, b, heads, d], last stride 1.
template <class T>
kernels::AttentionOperand<T> operand(const at::Tensor& x) {
  MPX_ASSERT(x.stride(3) == 1 || x.size(3) <= 1, "attention reads rows of neighbouring elements");
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

// Of forward: two products over the pairs that may see each other.
double flops_of(const CoreInputs& in, const CoreSpec& spec) {
  const double pairs =
      static_cast<double>(in.q.size(0)) * static_cast<double>(in.k.size(0)) * (plain_causal(in, spec) ? 0.5 : 1);
  return 4 * static_cast<double>(in.q.size(1) * in.q.size(2) * in.q.size(3)) * pairs;
}

}  // namespace

bool plain_causal(const CoreInputs& in, const CoreSpec& spec) {
  return !spec.queries.rows.defined() && !spec.keys.rows.defined() && spec.queries.first == spec.keys.first &&
         in.q.size(0) == in.k.size(0);
}

std::pair<at::Tensor, at::Tensor> blocked_attention(const CoreInputs& in, const CoreSpec& spec,
                                                    const Microbatch& batch) {
  const Mask mask = mask_of(in, spec, batch);
  const at::Tensor out = at::empty(in.q.sizes(), in.q.options());
  const at::Tensor logsumexp =
      at::empty({in.q.size(1), in.q.size(2), in.q.size(0)}, in.q.options().dtype(acc_type(in.q.scalar_type())));
  dispatch_element(in.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const kernels::AttentionForward<T> operands{operand<const T>(in.q), operand<const T>(in.k),
                                                operand<const T>(in.v), operand<T>(out),
                                                elements<kernels::Wide<T>>(logsumexp)};
    const Scratch scratch =
        make_scratch(spec.target, kernels::attention_forward_scratch<T>(mask.shape, at::get_num_threads()));
    cuda::launch(spec.target,
                 {"attention_forward",
                  {&in.q, &in.k, &in.v, &spec.queries.rows, &spec.keys.rows, &mask.documents, &mask.dropout.counters},
                  {&out, &logsumexp},
                  {{"key", mask.shape.dropout.key}, {"probability", mask.shape.dropout.probability}},
                  flops_of(in, spec),
                  {&scratch.memory}},
                 kernels::attention_forward<T>, kernels::attention_forward_cuda<T>, operands, mask.shape,
                 scratch.shape);
  });
  return {out, logsumexp};
}

CoreInputs blocked_attention_backward(const at::Tensor& dout, const CoreSpec& spec, const Microbatch& batch,
                                      const CoreSaved& saved) {
  const CoreInputs& in = saved.in;
  const Mask mask = mask_of(in, spec, batch);
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const CoreInputs d{like(in.q), like(in.k), like(in.v)};
  const at::Tensor dy = dout.stride(3) == 1 ? dout : dout.contiguous();
  dispatch_element(in.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const kernels::AttentionBackward<T> operands{operand<const T>(in.q), operand<const T>(in.k),
                                                 operand<const T>(in.v), operand<const T>(saved.out),
                                                 operand<const T>(dy),   elements<kernels::Wide<T>>(saved.logsumexp),
                                                 operand<T>(d.q),        operand<T>(d.k),
                                                 operand<T>(d.v)};
    const Scratch scratch =
        make_scratch(spec.target, kernels::attention_backward_scratch<T>(mask.shape, at::get_num_threads()));
    constexpr double kProductsOfBackward = 5.0 / 2;
    cuda::launch(spec.target,
                 {"attention_backward",
                  {&in.q, &in.k, &in.v, &saved.out, &dy, &saved.logsumexp, &spec.queries.rows, &spec.keys.rows,
                   &mask.documents, &mask.dropout.counters},
                  {&d.q, &d.k, &d.v},
                  {{"key", mask.shape.dropout.key}, {"probability", mask.shape.dropout.probability}},
                  kProductsOfBackward * flops_of(in, spec),
                  {&scratch.memory}},
                 kernels::attention_backward<T>, kernels::attention_backward_cuda<T>, operands, mask.shape,
                 scratch.shape);
  });
  return d;
}

}  // namespace metroplex::nn
