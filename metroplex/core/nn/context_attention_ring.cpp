// The p2p exchange of context_attention.h: keys and values pass from each rank to the next until every rank has
// received all (Liu, Zaharia, Abbeel: Ring Attention, arXiv:2310.01889). Results are joined by their logsumexp.
#include "nn/context_attention.h"

#include <ATen/ATen.h>

#include <utility>

#include "comm/collectives.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

KeyMessage message_like(const CoreInputs& in, at::ScalarType type) { return empty_message(in, in.k.size(0), type); }

struct Ring {
  const comm::Group& cp;
  int64_t size() const { return cp.size(); }
  int next() const { return (cp.index() + 1) % cp.size(); }
  int previous() const { return (cp.index() + cp.size() - 1) % cp.size(); }
  // Returns the rank whose keys this rank holds after `hops` hops.
  int64_t owner(int64_t hops) const { return (cp.index() + cp.size() - hops) % cp.size(); }
  comm::Handle hop(const KeyMessage& out, const KeyMessage& in, int channel) const {
    return comm::batch_p2p({{true, out.flat, next(), channel}, {false, in.flat, previous(), channel}}, cp);
  }
};

// Calls on_block(hops, keys and values, positions of queries and keys) for every rank's keys, starting with the local
// ones. The transfer of the next keys overlaps with the call.
template <class OnBlock>
void for_each_block(const CoreInputs& in, const CoreCall& call, const OnBlock& on_block) {
  const Ring ring{call.spec.cp};
  KeyMessage current = message_like(in, in.k.scalar_type()), incoming;
  current.k.copy_(in.k);
  current.v.copy_(in.v);
  for (int64_t hops = 0; hops < ring.size(); ++hops) {
    comm::Handle transfer;
    if (hops + 1 < ring.size()) {
      incoming = message_like(in, in.k.scalar_type());
      transfer = ring.hop(current, incoming, comm::kForwardChannel);
    }
    on_block(hops, current, CorePositions{call.positions.queries, rank_positions(call.batch, ring.owner(hops))});
    transfer.wait();
    current = std::exchange(incoming, {});
  }
}

}  // namespace

CoreResult ring_attention(const CoreInputs& in, const CoreCall& call) {
  CoreResult all;
  for_each_block(in, call, [&](int64_t hops, const KeyMessage& keys, const CorePositions& positions) {
    const CoreResult block = attend({in.q, keys.k, keys.v}, {call.spec, positions, call.batch});
    if (hops == 0) {  // every query sees itself, so logsumexp is finite
      all = {to_wide(block.out), block.logsumexp};
      return;
    }
    join(all, block);
  });
  return {all.out.to(in.q.scalar_type()), all.logsumexp};
}

// The gradients of a rank's keys travel with the keys. Each rank adds its contribution; the last hop returns them.
CoreInputs ring_attention_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                   const CoreCall& call) {
  const Ring ring{call.spec.cp};
  const at::ScalarType wide = acc_type(in.k.scalar_type());
  at::Tensor dq;
  KeyMessage outgoing, incoming;
  comm::Handle transfer;
  for_each_block(in, call, [&](int64_t hops, const KeyMessage& keys, const CorePositions& positions) {
    const CoreInputs gradients =
        attend_backward(dout, {in.q, keys.k, keys.v}, result, {call.spec, positions, call.batch});
    dq = hops == 0 ? to_wide(gradients.q) : dq.add_(gradients.q);
    transfer.wait();
    if (hops == 0) {
      outgoing = message_like(in, wide);
      outgoing.k.copy_(gradients.k);
      outgoing.v.copy_(gradients.v);
    } else {
      outgoing = incoming;
      outgoing.k.add_(gradients.k);
      outgoing.v.add_(gradients.v);
    }
    incoming = message_like(in, wide);
    transfer = ring.hop(outgoing, incoming, comm::kBackwardChannel);
  });
  transfer.wait();
  const at::ScalarType type = in.k.scalar_type();
  return {dq.to(type), incoming.k.to(type), incoming.v.to(type)};
}

}  // namespace metroplex::nn
