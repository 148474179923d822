// The a2a exchange of context_attention.h: between two all-to-alls a rank has the whole sequence for 1 / cp of the
// heads (Jacobs et al.: DeepSpeed Ulysses, arXiv:2309.14509). For a2a+p2p the all-to-alls connect neighboring ranks:
// a rank then has the rows of its neighbors for a share of the heads. It continues with p2p over the groups of
// neighbors (Fang, Zhao: USP, arXiv:2405.07719).
#include "nn/context_attention.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::nn {
namespace {

// An all-to-all in flight; owns its input until it completes.
struct Moving {
  at::Tensor in;
  comm::Exchange exchange;
  at::Tensor wait() { return exchange.wait(); }
};
using Splits = std::vector<int64_t>;

struct GroupRows {
  Splits all;
  size_t mine = 0;
  Splits own() const { return Splits(all.size(), all[mine]); }
};

// [s, b, heads, d] -> [rows of all ranks, b, heads / ranks, d], in group order.
Moving to_heads(const at::Tensor& x, const comm::Group& group, const GroupRows& rows) {
  const int64_t size = group.size();
  const at::Tensor parts =
      x.unflatten(2, {size, x.size(2) / size}).permute({2, 0, 1, 3, 4}).contiguous().flatten(0, 1);
  return {parts, comm::all_to_all_async(parts, rows.all, rows.own(), group)};
}

// The inverse of to_heads(); heads_joined() rearranges the received tensor.
Moving to_rows(const at::Tensor& x, const comm::Group& group, const GroupRows& rows) {
  const at::Tensor all = x.contiguous();
  return {all, comm::all_to_all_async(all, rows.own(), rows.all, group)};
}
at::Tensor heads_joined(const at::Tensor& parts, const comm::Group& cp) {
  return parts.unflatten(0, {cp.size(), parts.size(0) / cp.size()}).permute({1, 2, 0, 3, 4}).flatten(2, 3);
}

// Merges the ranges of each `neighbours` consecutive ranks into one.
std::vector<RowRun> runs_of_groups(const std::vector<RowRun>& runs, size_t neighbours) {
  std::vector<RowRun> groups;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i % neighbours == 0) groups.push_back(runs[i]);
    else groups.back().count += runs[i].count;
  }
  return groups;
}

// State between the all-to-alls: rows of all ranks in `sharing` for this rank's share of the heads. Those rows are
// one shard of `spec.cp`.
struct HeadsHere {
  const comm::Group& sharing;
  CoreSpec spec;
  CorePositions positions;
  Microbatch batch;
  GroupRows rows;
  int64_t copies = 1;  // number of ranks that receive the same key-value group

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
    rows = group_rows(call);
    batch.rank_rows = runs_of_groups(call.batch.rank_rows, static_cast<size_t>(size));
    if (batch.rank_rows.empty()) batch.all_rows = call.batch.all_rows.view({spec.cp.size(), -1});
    batch.rows = rows_of(batch, spec.cp.index()).rows;
    batch.keys = levels ? batch.keys_of_groups : KeyTravel();
    positions.queries = positions.keys = rows_of(batch, spec.cp.index());
  }
  CoreCall call() const { return {spec, positions, batch}; }
  GroupRows group_rows(const CoreCall& call) const {
    const auto size = static_cast<size_t>(sharing.size()), mine = static_cast<size_t>(sharing.index());
    const std::vector<RowRun>& runs = call.batch.rank_rows;
    GroupRows out{Splits(size, call.batch.rows.numel()), mine};
    const size_t first = static_cast<size_t>(call.spec.cp.index()) - mine;  // first rank of the group, in cp
    for (size_t i = 0; i < size && !runs.empty(); ++i) out.all[i] = runs[first + i].count;
    return out;
  }
  at::Tensor copied(const at::Tensor& keys) const { return copies == 1 ? keys : keys.repeat_interleave(copies, 2); }
  at::Tensor summed(const at::Tensor& d) const {
    return copies == 1 ? d : d.unflatten(2, {d.size(2) / copies, copies}).sum(3);
  }
};

CoreInputs inputs_here(const CoreInputs& in, const HeadsHere& here) {
  const comm::Group& group = here.sharing;
  Moving q = to_heads(in.q, group, here.rows), k = to_heads(here.copied(in.k), group, here.rows),
         v = to_heads(here.copied(in.v), group, here.rows);
  return {q.wait(), k.wait(), v.wait()};
}

CoreResult forward(const CoreInputs& in, const HeadsHere& here) {
  const CoreInputs all = inputs_here(in, here);
  const CoreResult result = here.spec.cp.size() > 1 ? context_attention(all, here.call()) : attend(all, here.call());
  return {heads_joined(to_rows(result.out, here.sharing, here.rows).wait(), here.sharing), result.logsumexp};
}

CoreInputs backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result, const HeadsHere& here) {
  const comm::Group& group = here.sharing;
  Moving out = to_heads(result.out, group, here.rows), dy = to_heads(dout, group, here.rows);
  const CoreInputs all = inputs_here(in, here);
  const CoreResult of_heads{out.wait(), result.logsumexp};
  const at::Tensor dout_here = dy.wait();
  const CoreInputs d = here.spec.cp.size() > 1 ? context_attention_backward(dout_here, all, of_heads, here.call())
                                               : attend_backward(dout_here, all, of_heads, here.call());
  Moving q = to_rows(d.q, group, here.rows), k = to_rows(d.k, group, here.rows), v = to_rows(d.v, group, here.rows);
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
