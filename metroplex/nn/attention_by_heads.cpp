// The a2a exchange of context_attention.h: between two all-to-alls a rank has the whole sequence for 1 / cp of the
// heads (Jacobs et al.: DeepSpeed Ulysses, arXiv:2309.14509). And a2a+p2p: between all-to-alls over neighbours a rank
// has the rows of these for a share of the heads, and goes on as by p2p over the groups of neighbours (Fang, Zhao:
// USP, arXiv:2405.07719).
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

// What a rank has in between: rows of all ranks of `sharing` for its share of the heads, one of `spec.cp` such parts.
struct HeadsHere {
  const comm::Group& sharing;
  CoreSpec spec;
  CorePositions positions;
  Microbatch batch;
  int64_t copies = 1;  // ranks that have the keys of one group

  HeadsHere(const CoreCall& call, bool levels)
      : sharing(levels ? call.spec.cp_a2a : call.spec.cp), spec(call.spec), batch(call.batch) {
    const int64_t size = sharing.size(), groups = spec.groups;
    MPX_ASSERT(spec.heads % size == 0 && (groups % size == 0 || size % groups == 0), spec.heads, " heads in ", groups,
               " groups for ", size, " context-parallel ranks");
    copies = groups % size == 0 ? 1 : size / groups;
    spec.heads /= size;
    spec.groups = groups * copies / size;
    spec.first_head += spec.heads * sharing.index();
    spec.cp = levels ? call.spec.cp_p2p : comm::Group();
    spec.exchange = config::CpCommType::p2p;
    batch.all_rows = call.batch.all_rows.view({spec.cp.size(), -1});
    batch.rows = batch.all_rows[spec.cp.index()];
    batch.keys = levels ? batch.keys_of_groups : KeyTravel();
    positions.queries = positions.keys = rows_of(batch, spec.cp.index());
  }
  CoreCall call() const { return {spec, positions, batch}; }
  at::Tensor copied(const at::Tensor& keys) const { return copies == 1 ? keys : keys.repeat_interleave(copies, 2); }
  at::Tensor summed(const at::Tensor& d) const {
    return copies == 1 ? d : d.unflatten(2, {d.size(2) / copies, copies}).sum(3);
  }
};

CoreInputs inputs_here(const CoreInputs& in, const HeadsHere& here) {
  const comm::Group& group = here.sharing;
  Moving q = to_heads(in.q, group), k = to_heads(here.copied(in.k), group), v = to_heads(here.copied(in.v), group);
  return {q.wait(), k.wait(), v.wait()};
}

CoreResult forward(const CoreInputs& in, const HeadsHere& here) {
  const CoreInputs all = inputs_here(in, here);
  const CoreResult result = here.spec.cp.size() > 1 ? context_attention(all, here.call()) : attend(all, here.call());
  return {heads_joined(to_rows(result.out, here.sharing).wait(), here.sharing), result.logsumexp};
}

CoreInputs backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result, const HeadsHere& here) {
  const comm::Group& group = here.sharing;
  Moving out = to_heads(result.out, group), dy = to_heads(dout, group);
  const CoreInputs all = inputs_here(in, here);
  const CoreResult of_heads{out.wait(), result.logsumexp};
  const at::Tensor dout_here = dy.wait();
  const CoreInputs d = here.spec.cp.size() > 1 ? context_attention_backward(dout_here, all, of_heads, here.call())
                                               : attend_backward(dout_here, all, of_heads, here.call());
  Moving q = to_rows(d.q, group), k = to_rows(d.k, group), v = to_rows(d.v, group);
  return {heads_joined(q.wait(), group), here.summed(heads_joined(k.wait(), group)),
          here.summed(heads_joined(v.wait(), group))};
}

}  // namespace

CoreResult attention_by_heads(const CoreInputs& in, const CoreCall& call) {
  return forward(in, HeadsHere(call, call.spec.exchange == config::CpCommType::a2a_p2p));
}

CoreInputs attention_by_heads_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call) {
  return backward(dout, in, result, HeadsHere(call, call.spec.exchange == config::CpCommType::a2a_p2p));
}

}  // namespace metroplex::nn
