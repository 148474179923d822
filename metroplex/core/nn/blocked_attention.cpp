#include "nn/blocked_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "base/error.h"
#include "kernels/blocked_attention.h"
#include "nn/attention_mask.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

struct Scratch {
  at::Tensor memory;
  kernels::AttentionScratch shape;
};
Scratch make_scratch(const device::Target& target, const kernels::AttentionScratch& shape) {
  Scratch scratch{{}, shape};
  scratch.memory =
      at::empty({shape.bytes * shape.workers}, at::TensorOptions().dtype(at::kByte).device(target.memory()));
  if (!target.meta) scratch.shape.data = static_cast<char*>(scratch.memory.mutable_data_ptr());
  return scratch;
}

}  // namespace

CoreResult blocked_attention(const CoreInputs& in, const CoreCall& call) {
  const device::Target& target = call.spec.target;
  const AttentionMask mask = attention_mask(in, call);
  const at::Tensor out = at::empty({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, in.q.options());
  const at::Tensor logsumexp =
      at::empty({in.q.size(1), in.q.size(2), in.q.size(0)}, in.q.options().dtype(acc_type(in.q.scalar_type())));
  dispatch_element(in.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const kernels::AttentionForward<T> operands{attention_operand<const T>(in.q), attention_operand<const T>(in.k),
                                                attention_operand<const T>(in.v), attention_operand<T>(out),
                                                elements<kernels::Wide<T>>(logsumexp)};
    const Scratch scratch =
        make_scratch(target, kernels::attention_forward_scratch<T>(mask.shape, at::get_num_threads()));
    device::launch(target,
                   {"attention_forward",
                    {&in.q, &in.k, &in.v, &call.positions.queries.rows, &call.positions.keys.rows, &mask.documents,
                     &mask.dropout.counters},
                    {&out, &logsumexp},
                    {{"key", mask.shape.dropout.key}, {"probability", mask.shape.dropout.probability}},
                    attention_flops(in, call, 1, 1),
                    {&scratch.memory}},
                   kernels::attention_forward<T>, device::CpuOnly{}, operands, mask.shape, scratch.shape);
  });
  return {out, logsumexp};
}

CoreInputs blocked_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                      const CoreCall& call) {
  const device::Target& target = call.spec.target;
  const AttentionMask mask = attention_mask(in, call);
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  const CoreInputs gradients{like(in.q), like(in.k), like(in.v)};
  const at::Tensor dy = dout.stride(3) == 1 ? dout : dout.contiguous();
  dispatch_element(in.q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const kernels::AttentionBackward<T> operands{
        attention_operand<const T>(in.q),  attention_operand<const T>(in.k),
        attention_operand<const T>(in.v),  attention_operand<const T>(result.out),
        attention_operand<const T>(dy),    elements<kernels::Wide<T>>(result.logsumexp),
        attention_operand<T>(gradients.q), attention_operand<T>(gradients.k),
        attention_operand<T>(gradients.v)};
    const Scratch scratch =
        make_scratch(target, kernels::attention_backward_scratch<T>(mask.shape, at::get_num_threads()));
    device::launch(target,
                   {"attention_backward",
                    {&in.q, &in.k, &in.v, &result.out, &dy, &result.logsumexp, &call.positions.queries.rows,
                     &call.positions.keys.rows, &mask.documents, &mask.dropout.counters},
                    {&gradients.q, &gradients.k, &gradients.v},
                    {{"key", mask.shape.dropout.key}, {"probability", mask.shape.dropout.probability}},
                    attention_flops(in, call, 3, 2),
                    {&scratch.memory}},
                   kernels::attention_backward<T>, device::CpuOnly{}, operands, mask.shape, scratch.shape);
  });
  return gradients;
}

}  // namespace metroplex::nn
