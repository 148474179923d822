// Core attention over a sequence whose rows the ranks of a group hold (context parallelism): the queries of this rank
// over the keys of all. What travels, in elements of a rank with s rows of n query and g key-value heads of size d,
// of which it holds 1 / cp of the sequence (forward; backward):
//   p2p: (cp - 1) times keys and values 2 s b g d; the same again, and cp times their gradients in at least fp32.
//   They
//     go round in a ring: while a rank's queries meet the keys of one rank, those of the next are on their way.
//   all_gather: keys and values of all ranks; the same again, and a reduce-scatter of their gradients.
//   a2a: queries, keys, values and results, all but 1 / cp of each; these and the gradient of the result, and the
//     gradients of queries, keys and values. A rank has the whole sequence for its share of the heads in between.
//     With more ranks than groups keys and values are sent to several ranks.
//   a2a+p2p: a2a over neighbours (cp_a2a) and p2p over the groups of neighbours (cp_p2p), of what is then here.
// Where the batch says which keys are seen (Microbatch::keys), p2p, all_gather and the p2p of a2a+p2p send these
// only, from the rank that has them to the one that sees them, and their gradients back. Backward exchanges again
// what forward had received, so that between them a rank keeps what it keeps without context parallelism, of its own
// rows. A query of one rank sees a key of another as positions and documents say; queries see themselves.
#pragma once

#include "nn/core_attention.h"

namespace metroplex::nn {

// As attend(): in the shapes of the own rows, with call.positions those of call.batch.rows. logsumexp is over all
// keys; with a2a it is that of the heads that are here in between. Collective over call.spec.cp.
CoreResult context_attention(const CoreInputs& in, const CoreCall& call);
CoreInputs context_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                      const CoreCall& call);

// What the exchanges share.

// The rows of all ranks of the group, in group order; of one rank.
Positions rows_of_all(const Microbatch& batch);
Positions rows_of(const Microbatch& batch, int64_t rank);

// Keys and values as one message.
struct KeyMessage {
  at::Tensor flat, k, v;
};
KeyMessage empty_message(const CoreInputs& like, int64_t rows, at::ScalarType type);

// Adds what other keys say to `all`, of the same queries: results in at least fp32, by their logsumexp.
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
// With call.batch.keys.
CoreResult seen_p2p_attention(const CoreInputs& in, const CoreCall& call);
CoreInputs seen_p2p_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call);
CoreResult seen_gathered_attention(const CoreInputs& in, const CoreCall& call);
CoreInputs seen_gathered_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                            const CoreCall& call);

}  // namespace metroplex::nn
