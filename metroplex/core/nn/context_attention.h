// Core attention over a sequence split over a group of ranks (context parallelism): the queries of this rank attend
// to the keys of all ranks. Traffic of one rank in elements, with s local rows (1 / cp of the sequence), n query
// heads and g key-value heads of size d (forward; backward):
//   p2p: (cp - 1) times keys and values, 2 s b g d; the same, plus cp times their gradients in at least fp32. Keys
//   and values circulate in a ring. Attention over the keys of one rank overlaps with the transfer of the next ones.
//   all_gather: keys and values of all ranks; the same, plus a reduce-scatter of their gradients.
//   a2a: all but 1 / cp of queries, keys, values and results; the same, plus the gradients of all four. Between the
//   exchanges a rank has the whole sequence for its share of the heads. With more ranks than key-value groups, keys
//   and values are sent to several ranks.
//   a2a+p2p: a2a over neighboring ranks (cp_a2a), then p2p on its results over the groups of neighbors (cp_p2p).
// If the batch lists which keys are visible (SequenceShard::keys), p2p, all_gather and the p2p of a2a+p2p send only
// those keys and return only their gradients. Backward repeats the exchanges of forward. Between the two a rank
// therefore stores no more than without context parallelism, for its own rows only. Positions and documents decide
// which keys of other ranks a query sees; every query sees itself.
#pragma once

#include "nn/core_attention.h"

namespace metroplex::nn {

// Same contract as attend(): shapes are those of the local rows, and call.positions are those of call.batch.rows.
// `logsumexp` covers all keys; with a2a it is that of this rank's share of the heads. Collective over call.spec.cp.
CoreResult context_attention(const CoreInputs& in, const CoreCall& call);
CoreInputs context_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                      const CoreCall& call);

// Functions shared by the exchanges.

// Positions of the rows of all ranks, in group order, and of one rank.
Positions all_positions(const Microbatch& batch);
Positions rank_positions(const Microbatch& batch, int64_t rank);

// Keys and values in one flat buffer; `k` and `v` are views of it.
struct KeyMessage {
  at::Tensor flat, k, v;
};
KeyMessage empty_message(const CoreInputs& like, int64_t rows, at::ScalarType type);

// Merges the result over another block of keys into `all`, for the same queries, by logsumexp. `all` is in at least
// fp32.
void join(CoreResult& all, const CoreResult& block);

CoreResult gathered_attention(const CoreInputs& in, const CoreCall& call);
CoreInputs gathered_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call);
CoreResult ring_attention(const CoreInputs& in, const CoreCall& call);
CoreInputs ring_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                   const CoreCall& call);
CoreResult attention_by_heads(const CoreInputs& in, const CoreCall& call);
CoreInputs attention_by_heads_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call);
// These require call.batch.keys.
CoreResult seen_p2p_attention(const CoreInputs& in, const CoreCall& call);
CoreInputs seen_p2p_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call);
CoreResult seen_gathered_attention(const CoreInputs& in, const CoreCall& call);
CoreInputs seen_gathered_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                            const CoreCall& call);

}  // namespace metroplex::nn
