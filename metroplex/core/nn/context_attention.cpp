#include "nn/context_attention.h"

#include <ATen/ATen.h>

#include <limits>

#include "base/error.h"
#include "comm/collectives.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

void check_call(const CoreInputs& in, const CoreCall& call) {
  const Microbatch& batch = call.batch;
  MPX_ASSERT(batch.cache == nullptr, "generation holds whole sequences");
  const bool even = batch.sequence.rank_rows.empty();
  MPX_ASSERT(batch.sequence.all_rows.defined() &&
                 (batch.sequence.context_ranks > 0 || batch.sequence.all_rows.numel() == batch.sequence.length) &&
                 (even ? batch.sequence.all_rows.size(0) : static_cast<int64_t>(batch.sequence.rank_rows.size())) ==
                     call.spec.cp.size() &&
                 rank_positions(batch, call.spec.cp.index()).rows.size(0) == in.q.size(0),
             "a context-parallel rank with ", in.q.size(0), " queries lacks the rows of the others");
  MPX_ASSERT(call.spec.exchange != config::CpCommType::a2a_p2p ||
                 call.spec.cp_a2a.size() * call.spec.cp_p2p.size() == call.spec.cp.size(),
             "levels of ", call.spec.cp_a2a.size(), " and ", call.spec.cp_p2p.size(), " ranks of ",
             call.spec.cp.size());
  MPX_ASSERT(call.positions.queries.rows.defined(), "the rows of a context-parallel rank are missing");
  const auto lists = static_cast<size_t>(call.spec.cp.size());
  MPX_ASSERT((batch.sequence.keys.sent.empty() && batch.sequence.keys.received.empty()) ||
                 (batch.sequence.keys.sent.size() == lists && batch.sequence.keys.received.size() == lists),
             "lists of keys for ", batch.sequence.keys.sent.size(), " and ", batch.sequence.keys.received.size(),
             " ranks, not ", lists);
}

// Reshapes [b, n, s] to broadcast over [s, b, n, dv].
at::Tensor factor(const at::Tensor& x_bns) { return x_bns.permute({2, 0, 1}).unsqueeze(3); }

bool has_key_lists(const CoreCall& call) {
  const bool lists = !call.batch.sequence.keys.sent.empty();
  MPX_ASSERT(lists || call.batch.sequence.rank_rows.empty(),
             "ranks with different numbers of rows, and no lists of keys");
  return lists;
}

CoreInputs gather_keys(const CoreInputs& in, const CoreCall& call) {
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

Positions all_positions(const Microbatch& batch) {
  return {0, batch.sequence.all_rows.flatten(), batch.sequence.length, batch.sequence.all_ranges};
}
Positions rank_positions(const Microbatch& batch, int64_t rank) {
  if (batch.sequence.rank_rows.empty()) {
    const int64_t rows = batch.sequence.all_rows.size(1);
    return {0, batch.sequence.all_rows[rank], batch.sequence.length,
            narrow_ranges(batch.sequence.all_ranges, rank * rows, rows)};
  }
  const auto& [first, count] = batch.sequence.rank_rows[static_cast<size_t>(rank)];
  return {0, batch.sequence.all_rows.narrow(0, first, count), batch.sequence.length,
          narrow_ranges(batch.sequence.all_ranges, first, count)};
}

KeyMessage empty_message(const CoreInputs& like, int64_t rows, at::ScalarType type) {
  const auto sizes = [&](const at::Tensor& x) { return std::vector<int64_t>{rows, x.size(1), x.size(2), x.size(3)}; };
  const int64_t keys = c10::multiply_integers(sizes(like.k)), values = c10::multiply_integers(sizes(like.v));
  const at::Tensor flat = at::empty({keys + values}, like.k.options().dtype(type));
  return {flat, flat.narrow(0, 0, keys).view(sizes(like.k)), flat.narrow(0, keys, values).view(sizes(like.v))};
}

void join(CoreResult& all, const CoreResult& block) {
  const at::Tensor sum = at::logaddexp(all.logsumexp, block.logsumexp);
  const at::Tensor finite_sum = sum.clamp_min(std::numeric_limits<float>::lowest());  // avoids -inf - -inf = NaN
  all.out.mul_(factor((all.logsumexp - finite_sum).exp()))
      .add_(to_wide(block.out) * factor((block.logsumexp - finite_sum).exp()));
  all.logsumexp = sum;
}

CoreResult gathered_attention(const CoreInputs& in, const CoreCall& call) {
  const CorePositions positions{call.positions.queries, all_positions(call.batch)};
  return attend(gather_keys(in, call), {call.spec, positions, call.batch});
}

CoreInputs gathered_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call) {
  const CorePositions positions{call.positions.queries, all_positions(call.batch)};
  const CoreInputs all = attend_backward(dout, gather_keys(in, call), result, {call.spec, positions, call.batch});
  const CoreInputs gradients{all.q, at::empty(in.k.sizes(), all.k.options()),
                             at::empty(in.v.sizes(), all.v.options())};
  comm::Handle keys = comm::reduce_scatter_into_async(gradients.k, all.k, call.spec.cp),
               values = comm::reduce_scatter_into_async(gradients.v, all.v, call.spec.cp);
  keys.wait();
  values.wait();
  return gradients;
}

CoreResult context_attention(const CoreInputs& in, const CoreCall& call) {
  check_call(in, call);
  switch (call.spec.exchange) {
    case config::CpCommType::p2p:
      return has_key_lists(call) ? seen_p2p_attention(in, call) : ring_attention(in, call);
    case config::CpCommType::all_gather:
      return has_key_lists(call) ? seen_gathered_attention(in, call) : gathered_attention(in, call);
    case config::CpCommType::a2a:
    case config::CpCommType::a2a_p2p:
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
      return has_key_lists(call) ? seen_p2p_attention_backward(dout, in, result, call)
                                 : ring_attention_backward(dout, in, result, call);
    case config::CpCommType::all_gather:
      return has_key_lists(call) ? seen_gathered_attention_backward(dout, in, result, call)
                                 : gathered_attention_backward(dout, in, result, call);
    case config::CpCommType::a2a:
    case config::CpCommType::a2a_p2p:
      return attention_by_heads_backward(dout, in, result, call);
  }
  MPX_ASSERT(false, "an exchange without a meaning");
  return {};
}

}  // namespace metroplex::nn
