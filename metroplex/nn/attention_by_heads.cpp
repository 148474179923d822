// The a2a exchange of context_attention.h: between two all-to-alls a rank has the whole sequence for 1 / cp of the
// heads (Jacobs et al.: DeepSpeed Ulysses, arXiv:2309.14509).
#include <ATen/ATen.h>

#include "base/error.h"
#include "comm/collectives.h"
#include "nn/context_attention.h"

namespace metroplex::nn {
namespace {

// What is under way; its input lives until then.
struct Moving {
  at::Tensor in;
  comm::Exchange exchange;
  at::Tensor wait() { return exchange.wait(); }
};
Moving exchanged(const at::Tensor& parts, int64_t rows, const comm::Group& cp) {
  const std::vector<int64_t> splits(static_cast<size_t>(cp.size()), rows);
  return {parts, comm::all_to_all_async(parts, splits, splits, cp)};
}

// [s, b, heads, d] -> [cp s, b, heads / cp, d], rows in group order.
Moving to_heads(const at::Tensor& x, const comm::Group& cp) {
  const int64_t s = x.size(0), size = cp.size();
  const at::Tensor parts = x.unflatten(2, {size, x.size(2) / size}).permute({2, 0, 1, 3, 4}).contiguous();
  return exchanged(parts.flatten(0, 1), s, cp);
}

// The way back, and what it is taken apart by when it has come.
Moving to_rows(const at::Tensor& x, const comm::Group& cp) {
  return exchanged(x.contiguous(), x.size(0) / cp.size(), cp);
}
at::Tensor heads_joined(const at::Tensor& parts, const comm::Group& cp) {
  return parts.unflatten(0, {cp.size(), parts.size(0) / cp.size()}).permute({1, 2, 0, 3, 4}).flatten(2, 3);
}

// The call for the heads that are here in between.
struct HeadsHere {
  CoreSpec spec;
  CorePositions positions;
  int64_t copies = 1;  // ranks that have the keys of one group

  explicit HeadsHere(const CoreCall& call) : spec(call.spec) {
    const int64_t size = spec.cp.size(), groups = spec.groups;
    MPX_ASSERT(spec.heads % size == 0 && (groups % size == 0 || size % groups == 0), spec.heads, " heads in ", groups,
               " groups for ", size, " context-parallel ranks");
    copies = groups % size == 0 ? 1 : size / groups;
    spec.heads /= size;
    spec.groups = groups * copies / size;
    spec.first_head += spec.heads * spec.cp.index();
    positions = {rows_of_all(call.batch), rows_of_all(call.batch)};
  }
  at::Tensor copied(const at::Tensor& keys) const { return copies == 1 ? keys : keys.repeat_interleave(copies, 2); }
  at::Tensor summed(const at::Tensor& d) const {
    return copies == 1 ? d : d.unflatten(2, {d.size(2) / copies, copies}).sum(3);
  }
};

CoreInputs inputs_here(const CoreInputs& in, const HeadsHere& here) {
  const comm::Group& cp = here.spec.cp;
  Moving q = to_heads(in.q, cp), k = to_heads(here.copied(in.k), cp), v = to_heads(here.copied(in.v), cp);
  return {q.wait(), k.wait(), v.wait()};
}

}  // namespace

CoreResult attention_by_heads(const CoreInputs& in, const CoreCall& call) {
  const HeadsHere here(call);
  const comm::Group& cp = call.spec.cp;
  const CoreResult result = attend(inputs_here(in, here), {here.spec, here.positions, call.batch});
  return {heads_joined(to_rows(result.out, cp).wait(), cp), result.logsumexp};
}

CoreInputs attention_by_heads_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call) {
  const HeadsHere here(call);
  const comm::Group& cp = call.spec.cp;
  Moving out = to_heads(result.out, cp), dy = to_heads(dout, cp);
  const CoreInputs all = inputs_here(in, here);
  const at::Tensor out_here = out.wait();
  const CoreInputs d =
      attend_backward(dy.wait(), all, {out_here, result.logsumexp}, {here.spec, here.positions, call.batch});
  Moving q = to_rows(d.q, cp), k = to_rows(d.k, cp), v = to_rows(d.v, cp);
  return {heads_joined(q.wait(), cp), here.summed(heads_joined(k.wait(), cp)),
          here.summed(heads_joined(v.wait(), cp))};
}

}  // namespace metroplex::nn
