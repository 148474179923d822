#include "nn/context_attention.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::nn {
namespace {

void check_call(const CoreInputs& in, const CoreCall& call) {
  const Microbatch& batch = call.batch;
  MPX_ASSERT(batch.cache == nullptr, "generation holds whole sequences");
  MPX_ASSERT(batch.all_rows.defined() && batch.all_rows.size(0) == call.spec.cp.size() &&
                 batch.all_rows.size(1) == in.q.size(0) && batch.all_rows.numel() == batch.full_seq_len,
             "a context-parallel rank with ", in.q.size(0), " queries does not know the rows of the others");
  MPX_ASSERT(call.positions.queries.rows.defined(), "the rows of a context-parallel rank");
}

// Both begin before either is waited for.
CoreInputs gathered_keys(const CoreInputs& in, const CoreCall& call) {
  const comm::Group& cp = call.spec.cp;
  const at::Tensor k = in.k.contiguous(), v = in.v.contiguous();
  const auto all = [&](const at::Tensor& x) {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes[0] *= cp.size();
    return at::empty(sizes, x.options());
  };
  const CoreInputs out{in.q, all(k), all(v)};
  comm::Handle keys = comm::all_gather_into_async(out.k, k, cp), values = comm::all_gather_into_async(out.v, v, cp);
  keys.wait();
  values.wait();
  return out;
}

}  // namespace

Positions rows_of_all(const Microbatch& batch) { return {0, batch.all_rows.flatten(), batch.full_seq_len}; }
Positions rows_of(const Microbatch& batch, int64_t rank) { return {0, batch.all_rows[rank], batch.full_seq_len}; }

CoreResult gathered_attention(const CoreInputs& in, const CoreCall& call) {
  const CorePositions positions{call.positions.queries, rows_of_all(call.batch)};
  return attend(gathered_keys(in, call), {call.spec, positions, call.batch});
}

CoreInputs gathered_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call) {
  const CorePositions positions{call.positions.queries, rows_of_all(call.batch)};
  const CoreInputs all = attend_backward(dout, gathered_keys(in, call), result, {call.spec, positions, call.batch});
  const CoreInputs d{all.q, at::empty(in.k.sizes(), all.k.options()), at::empty(in.v.sizes(), all.v.options())};
  comm::Handle keys = comm::reduce_scatter_into_async(d.k, all.k, call.spec.cp),
               values = comm::reduce_scatter_into_async(d.v, all.v, call.spec.cp);
  keys.wait();
  values.wait();
  return d;
}

CoreResult context_attention(const CoreInputs& in, const CoreCall& call) {
  check_call(in, call);
  switch (call.spec.exchange) {
    case config::CpCommType::p2p:
      return ring_attention(in, call);
    case config::CpCommType::all_gather:
      return gathered_attention(in, call);
    case config::CpCommType::a2a:
      return attention_by_heads(in, call);
  }
  MPX_ASSERT(false, "an exchange without a meaning");
  return {};
}

CoreInputs context_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                      const CoreCall& call) {
  check_call(in, call);
  switch (call.spec.exchange) {
    case config::CpCommType::p2p:
      return ring_attention_backward(dout, in, result, call);
    case config::CpCommType::all_gather:
      return gathered_attention_backward(dout, in, result, call);
    case config::CpCommType::a2a:
      return attention_by_heads_backward(dout, in, result, call);
  }
  MPX_ASSERT(false, "an exchange without a meaning");
  return {};
}

}  // namespace metroplex::nn
