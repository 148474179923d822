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
  int before() const { return (cp.index() + cp.size() - 1) % cp.size(); }
  // Rank whose keys are here after `hops` hops.
  int64_t owner(int64_t hops) const { return (cp.index() + cp.size() - hops) % cp.size(); }
  comm::Handle hop(const KeyMessage& out, const KeyMessage& in, int channel) const {
    return comm::batch_p2p({{true, out.flat, next(), channel}, {false, in.flat, before(), channel}}, cp);
  }
};

// Calls on_block(hops, keys and values, positions of queries and keys) for every rank's keys, starting with the local
// ones. The transfer of the next keys overlaps with the call.
template <class OnBlock>
void for_each_block(const CoreInputs& in, const CoreCall& call, const OnBlock& on_block) {
  const Ring ring{call.spec.cp};
  KeyMessage here = message_like(in, in.k.scalar_type()), coming;
  here.k.copy_(in.k);
  here.v.copy_(in.v);
  for (int64_t hops = 0; hops < ring.size(); ++hops) {
    comm::Handle travel;
    if (hops + 1 < ring.size()) {
      coming = message_like(in, in.k.scalar_type());
      travel = ring.hop(here, coming, comm::kForwardChannel);
    }
    on_block(hops, here, CorePositions{call.positions.queries, rows_of(call.batch, ring.owner(hops))});
    travel.wait();
    here = std::exchange(coming, {});
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
  KeyMessage sent, coming;
  comm::Handle travel;
  for_each_block(in, call, [&](int64_t hops, const KeyMessage& keys, const CorePositions& positions) {
    const CoreInputs d = attend_backward(dout, {in.q, keys.k, keys.v}, result, {call.spec, positions, call.batch});
    dq = hops == 0 ? to_wide(d.q) : dq.add_(d.q);
    travel.wait();
    if (hops == 0) {
      sent = message_like(in, wide);
      sent.k.copy_(d.k);
      sent.v.copy_(d.v);
    } else {
      sent = coming;
      sent.k.add_(d.k);
      sent.v.add_(d.v);
    }
    coming = message_like(in, wide);
    travel = ring.hop(sent, coming, comm::kBackwardChannel);
  });
  travel.wait();
  const at::ScalarType type = in.k.scalar_type();
  return {dq.to(type), coming.k.to(type), coming.v.to(type)};
}

}  // namespace metroplex::nn
