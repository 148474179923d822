// The a2a exchange of context_attention.h: between two all-to-alls a rank has the whole sequence for 1 / cp of the
// heads (Jacobs et al.: DeepSpeed Ulysses, arXiv:2309.14509). For a2a+p2p the all-to-alls connect neighboring ranks:
// a rank then has the rows of its neighbors for a share of the heads. It continues with p2p over the groups of
// neighbors (Fang, Zhao: USP, arXiv:2405.07719).
#include "nn/context_attention.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "nn/head_exchange.h"

namespace metroplex::nn {
namespace {

// Merges the ranges of each `neighbours` consecutive ranks into one.
std::vector<IndexRange> merge_neighbours(const std::vector<IndexRange>& ranges, size_t neighbours) {
  std::vector<IndexRange> groups;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i % neighbours == 0) groups.push_back(ranges[i]);
    else groups.back().count += ranges[i].count;
  }
  return groups;
}

// State between the all-to-alls: rows of all ranks in `sharing` for this rank's share of the heads. Those rows are
// one shard of `spec.cp`.
struct LocalHeads {
  const comm::Group& sharing;
  CoreSpec spec;
  CorePositions positions;
  Microbatch batch;
  GroupRows rows;
  int64_t copies = 1;  // number of ranks that receive the same key-value group

  LocalHeads(const CoreCall& call, bool levels)
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
    batch.sequence.rank_rows = merge_neighbours(call.batch.sequence.rank_rows, static_cast<size_t>(size));
    if (batch.sequence.rank_rows.empty())
      batch.sequence.all_rows = call.batch.sequence.all_rows.view({spec.cp.size(), -1});
    batch.sequence.rows = rank_positions(batch, spec.cp.index()).rows;
    batch.sequence.keys = levels ? batch.sequence.group_keys : KeyExchange();
    positions.queries = positions.keys = rank_positions(batch, spec.cp.index());
  }
  CoreCall call() const { return {spec, positions, batch}; }
  GroupRows group_rows(const CoreCall& call) const {
    const auto size = static_cast<size_t>(sharing.size()), own_index = static_cast<size_t>(sharing.index());
    const std::vector<IndexRange>& ranges = call.batch.sequence.rank_rows;
    GroupRows out{std::vector<int64_t>(size, call.batch.sequence.rows.numel()), own_index};
    const size_t first = static_cast<size_t>(call.spec.cp.index()) - own_index;  // first rank of the group, in cp
    for (size_t i = 0; i < size && !ranges.empty(); ++i) out.all[i] = ranges[first + i].count;
    return out;
  }
  at::Tensor repeat_keys(const at::Tensor& keys) const {
    return copies == 1 ? keys : keys.repeat_interleave(copies, 2);
  }
  at::Tensor sum_copies(const at::Tensor& d) const {
    return copies == 1 ? d : d.unflatten(2, {d.size(2) / copies, copies}).sum(3);
  }
};

CoreInputs exchange_inputs(const CoreInputs& in, const LocalHeads& local_heads) {
  const comm::Group& group = local_heads.sharing;
  PendingExchange q = to_heads(in.q, group, local_heads.rows),
                  k = to_heads(local_heads.repeat_keys(in.k), group, local_heads.rows),
                  v = to_heads(local_heads.repeat_keys(in.v), group, local_heads.rows);
  return {q.wait(), k.wait(), v.wait()};
}

CoreResult forward(const CoreInputs& in, const LocalHeads& local_heads) {
  const CoreInputs all = exchange_inputs(in, local_heads);
  const CoreResult result =
      local_heads.spec.cp.size() > 1 ? context_attention(all, local_heads.call()) : attend(all, local_heads.call());
  return {join_heads(to_rows(result.out, local_heads.sharing, local_heads.rows).wait(), local_heads.sharing),
          result.logsumexp};
}

CoreInputs backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                    const LocalHeads& local_heads) {
  const comm::Group& group = local_heads.sharing;
  PendingExchange out = to_heads(result.out, group, local_heads.rows), dy = to_heads(dout, group, local_heads.rows);
  const CoreInputs all = exchange_inputs(in, local_heads);
  const CoreResult local_result{out.wait(), result.logsumexp};
  const at::Tensor local_dout = dy.wait();
  const CoreInputs gradients = local_heads.spec.cp.size() > 1
                                   ? context_attention_backward(local_dout, all, local_result, local_heads.call())
                                   : attend_backward(local_dout, all, local_result, local_heads.call());
  PendingExchange q = to_rows(gradients.q, group, local_heads.rows),
                  k = to_rows(gradients.k, group, local_heads.rows),
                  v = to_rows(gradients.v, group, local_heads.rows);
  return {join_heads(q.wait(), group), local_heads.sum_copies(join_heads(k.wait(), group)),
          local_heads.sum_copies(join_heads(v.wait(), group))};
}

}  // namespace

CoreResult attention_by_heads(const CoreInputs& in, const CoreCall& call) {
  return forward(in, LocalHeads(call, call.spec.exchange == config::CpCommType::a2a_p2p));
}

CoreInputs attention_by_heads_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call) {
  return backward(dout, in, result, LocalHeads(call, call.spec.exchange == config::CpCommType::a2a_p2p));
}

}  // namespace metroplex::nn
