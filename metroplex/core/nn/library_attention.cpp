#include "nn/library_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <limits>
#include <utility>
#include <vector>

#include "device/device.h"
#include "nn/attention_blocks.h"
#include "nn/attention_mask.h"
#include "nn/block_documents.h"
#include "nn/context_attention.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {

using config::AttentionBy;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// [s, b, heads, d] -> [b, heads, s, d]
at::Tensor heads_first(const at::Tensor& x) { return x.permute({1, 2, 0, 3}); }
at::Tensor sequence_first(const at::Tensor& x) { return x.permute({2, 0, 1, 3}); }

FusedInputs heads_first(const CoreInputs& in) { return {heads_first(in.q), heads_first(in.k), heads_first(in.v)}; }

CoreResult fused(const CoreInputs& in, const CoreCall& call, const FusedSpec& spec) {
  const auto [out, logsumexp] = fused_attention(call.spec.target, heads_first(in), spec);
  return {sequence_first(out), logsumexp};
}
CoreInputs fused_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                          const CoreCall& call, const FusedSpec& spec) {
  const FusedGradients d = fused_attention_backward(
      call.spec.target, heads_first(in), {heads_first(result.out), result.logsumexp, heads_first(dout)}, spec);
  return {sequence_first(d.q), sequence_first(d.k), sequence_first(d.v)};
}

// True for a single query at or after the position of every key, as in generation: nothing is masked.
bool sees_all(const CoreInputs& in, const CorePositions& positions) {
  return in.q.size(0) == 1 && !positions.queries.rows.defined() && !positions.keys.rows.defined() &&
         positions.queries.first >= positions.keys.first + in.k.size(0) - 1;
}

config::ParamsDtype dtype_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return config::ParamsDtype::bf16;
    case at::kHalf:
      return config::ParamsDtype::fp16;
    case at::kFloat:
      return config::ParamsDtype::fp32;
    default:
      return config::ParamsDtype::fp64;
  }
}

// True if the mask hides only later keys, keys outside the window, and keys of other documents given by offsets.
bool plain_mask(const CoreInputs& in, const CoreCall& call) {
  const Microbatch& batch = call.batch;
  const bool documents = batch.document_ids.defined();
  if (documents && !(batch.document_offsets.defined() && batch.document_ids.size(1) == in.q.size(0))) return false;
  return plain_causal(in, call.positions) || (sees_all(in, call.positions) && !documents && call.spec.window < 0);
}

// Sets all fields except plain_mask and the numbers of queries and keys.
config::AttentionCase case_of(const CoreInputs& in, const CoreCall& call) {
  const CoreSpec& spec = call.spec;
  config::AttentionCase c{dtype_of(in.q), spec.head_dim, spec.v_head_dim};
  c.plain_scores = spec.softcap == 0 && spec.softmax == config::SoftmaxType::vanilla;
  c.window = spec.window >= 0;
  c.dropout = spec.dropout.active(call.batch);
  c.documents = call.batch.document_ids.defined();
  c.capability = device::compute_capability();
  c.deterministic = at::globalContext().deterministicAlgorithms();
  return c;
}

// The operator for one call. AttentionBy::own: no GPU operator of libtorch can compute it without a mask tensor.
FusedSpec how_to_fuse(const CoreInputs& in, const CoreCall& call) {
  config::AttentionCase c = case_of(in, call);
  c.plain_mask = plain_mask(in, call);
  c.queries = in.q.size(0), c.keys = in.k.size(0);
  FusedSpec spec{config::gpu_attention(c).by, plain_causal(in, call.positions), call.spec.softmax_scale};
  spec.window = call.spec.window;
  spec.documents = {call.batch.document_offsets, call.batch.document_offsets};
  return spec;
}

bool known_to_the_host(const Positions& positions, int64_t rows) {
  return positions.rows.defined() && rows > 0 && num_rows(positions.runs) == rows;
}
// Requires half types: memory-efficient attention, which fp32 uses, has a logsumexp of another shape.
bool has_known_rows(const CoreInputs& in, const CorePositions& positions) {
  return is_half(in.q) && known_to_the_host(positions.queries, in.q.size(0)) &&
         known_to_the_host(positions.keys, in.k.size(0));
}

using Calls = std::optional<LibraryCalls>;

Calls one_call(const CoreInputs& in, const CoreCall& call) {
  const FusedSpec spec = how_to_fuse(in, call);
  if (spec.by == AttentionBy::own) return std::nullopt;
  return LibraryCalls{{{0, in.q.size(0)}, {0, in.k.size(0)}, spec, {}}};
}

Positions in_order(const Positions& positions) {
  const RowOrder order(positions.runs);
  return {0, order.in_order(positions.rows), positions.whole, order.positions()};
}

Calls calls_of_blocks(const CoreInputs& in, const CoreCall& call, const std::vector<AttentionBlock>& blocks) {
  config::AttentionCase c = case_of(in, call);
  if (c.documents && !call.batch.document_offsets.defined()) return std::nullopt;
  LibraryCalls calls;
  for (const AttentionBlock& block : blocks) {
    c.queries = block.queries.count, c.keys = block.keys.count, c.window = block.window >= 0;
    const FusedSpec spec{config::gpu_attention(c).by, block.causal, call.spec.softmax_scale, block.window};
    if (spec.by == AttentionBy::own) return std::nullopt;
    calls.push_back({block.queries, block.keys, spec, {}});
  }
  if (!c.documents) return calls;
  const CorePositions ordered{in_order(call.positions.queries), in_order(call.positions.keys)};
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::optional<BlockDocuments> documents = block_documents(call.batch, blocks[i], ordered);
    if (!documents) return std::nullopt;
    calls[i].spec.documents = documents->rows;
    calls[i].hidden = documents->hidden;
  }
  return calls;
}

// Returns nullopt if an operator would need a mask tensor, and an empty list if no query sees a key.
Calls library_calls(const CoreInputs& in, const CoreCall& call) {
  if (!has_known_rows(in, call.positions)) return one_call(in, call);
  const std::vector<RowRun> queries = RowOrder(call.positions.queries.runs).positions(),
                            keys = RowOrder(call.positions.keys.runs).positions();
  const bool same_run = queries.size() == 1 && keys.size() == 1 && queries[0].first == keys[0].first &&
                        queries[0].count == keys[0].count;
  const at::Tensor& documents = call.batch.document_ids;
  if (!same_run || (documents.defined() && documents.size(1) != queries[0].count))
    return calls_of_blocks(in, call, attention_blocks(queries, keys, call.spec.window));
  const Positions run{queries[0].first, {}, 0};
  const CorePositions plain{run, run};
  return one_call(in, {call.spec, plain, call.batch});
}

// Sorts queries and keys by position if they have explicit positions.
struct OrderedRows {
  RowOrder queries, keys;

  explicit OrderedRows(const CorePositions& positions) : queries(positions.queries.runs), keys(positions.keys.runs) {}
  CoreInputs in_order(const CoreInputs& in) const {
    return {queries.in_order(in.q), keys.in_order(in.k), keys.in_order(in.v)};
  }
  CoreInputs as_given(const CoreInputs& d) const {
    return {queries.as_given(d.q), keys.as_given(d.k), keys.as_given(d.v)};
  }
  CoreResult in_order(const CoreResult& result) const {
    return {queries.in_order(result.out), queries.in_order(result.logsumexp, 2)};
  }
  CoreResult as_given(const CoreResult& result) const {
    return {queries.as_given(result.out), queries.as_given(result.logsumexp, 2)};
  }
};

at::Tensor cut(const at::Tensor& x, const RowRun& rows) { return x.narrow(0, rows.first, rows.count); }
CoreInputs cut(const CoreInputs& in, const LibraryCall& part) {
  return {cut(in.q, part.queries), cut(in.k, part.keys), cut(in.v, part.keys)};
}
// For all queries the operator's logsumexp is unchanged, because it may be padded.
CoreResult cut(const CoreResult& all, const RowRun& queries) {
  if (queries.count == all.out.size(0)) return all;
  return {cut(all.out, queries), all.logsumexp.narrow(2, queries.first, queries.count)};
}

// Sums results of calls that each cover some rows.
class CallSums {
 public:
  explicit CallSums(const at::Tensor& like) : like_(like) {}
  void add(const RowRun& rows, const at::Tensor& part) {
    if (!sum_.defined() && rows.count == like_.size(0)) {
      sum_ = part;
      return;
    }
    const at::ScalarType wide = acc_type(like_.scalar_type());
    sum_ = sum_.defined() ? sum_.to(wide) : at::zeros(like_.sizes(), like_.options().dtype(wide));
    cut(sum_, rows).add_(part);
  }
  at::Tensor take() { return sum_.defined() ? sum_.to(like_.scalar_type()) : at::zeros_like(like_); }

 private:
  at::Tensor like_, sum_;
};

CoreResult sees_nothing(const CoreInputs& in) {
  const int64_t s = in.q.size(0), b = in.q.size(1), heads = in.q.size(2);
  const at::TensorOptions wide = in.q.options().dtype(acc_type(in.q.scalar_type()));
  return {at::zeros({s, b, heads, in.v.size(3)}, in.q.options()), at::full({b, heads, s}, -kInfinity, wide)};
}

// Joins the results of calls with the same queries by logsumexp.
class JoinedCalls {
 public:
  explicit JoinedCalls(const CoreInputs& in) : in_(in) {}
  void add(const RowRun& queries, const CoreResult& part) {
    if (!all_.out.defined() && queries.count == in_.q.size(0)) {
      all_ = part;
      given_ = queries.count;
      return;
    }
    if (!all_.out.defined()) all_ = sees_nothing(in_);
    const bool first = queries.first >= given_;
    if (!first) all_.out = to_wide(all_.out);
    given_ = std::max(given_, queries.first + queries.count);
    CoreResult here = cut(all_, queries);
    const at::Tensor sums = here.logsumexp;
    if (first) here = {here.out.copy_(part.out), part.logsumexp};
    else join(here, part);
    sums.copy_(here.logsumexp);
  }
  CoreResult take() {
    return all_.out.defined() ? CoreResult{all_.out.to(in_.q.scalar_type()), all_.logsumexp} : sees_nothing(in_);
  }

 private:
  const CoreInputs& in_;
  CoreResult all_;
  int64_t given_ = 0;  // first query that no call has covered
};

CoreResult forward_of(const CoreInputs& in, const CoreCall& call, const LibraryCall& part) {
  const CoreResult result = fused(cut(in, part), call, part.spec);
  if (!part.hidden.defined()) return result;
  return {result.out.masked_fill_(part.hidden.permute({2, 0, 1}).unsqueeze(3), 0),
          result.logsumexp.masked_fill_(part.hidden, -kInfinity)};
}

CoreResult forward_in_order(const CoreInputs& in, const CoreCall& call, const LibraryCalls& calls) {
  JoinedCalls all(in);
  for (const LibraryCall& part : calls) all.add(part.queries, forward_of(in, call, part));
  return all.take();
}

// Operators compute probabilities as exp(score - logsumexp), so +inf gives hidden queries probability 0.
CoreResult left_for(const CoreResult& result, const LibraryCall& part) {
  CoreResult left = cut(result, part.queries);
  if (part.hidden.defined()) left.logsumexp = left.logsumexp.masked_fill(part.hidden, kInfinity);
  return left;
}

CoreInputs backward_in_order(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                             const CoreCall& call, const LibraryCalls& calls) {
  CallSums q(in.q), k(in.k), v(in.v);
  for (const LibraryCall& part : calls) {
    const CoreInputs d =
        fused_backward(cut(dout, part.queries), cut(in, part), left_for(result, part), call, part.spec);
    q.add(part.queries, d.q);
    k.add(part.keys, d.k);
    v.add(part.keys, d.v);
  }
  return {q.take(), k.take(), v.take()};
}

}  // namespace

CoreResult attention_by_calls(const CoreInputs& in, const CoreCall& call, const LibraryCalls& calls) {
  const OrderedRows rows(call.positions);
  return rows.as_given(forward_in_order(rows.in_order(in), call, calls));
}

CoreInputs attention_by_calls_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call, const LibraryCalls& calls) {
  const OrderedRows rows(call.positions);
  return rows.as_given(
      backward_in_order(rows.queries.in_order(dout), rows.in_order(in), rows.in_order(result), call, calls));
}

std::optional<CoreResult> library_attention(const CoreInputs& in, const CoreCall& call) {
  const Calls calls = library_calls(in, call);
  return calls.has_value() ? std::optional(attention_by_calls(in, call, *calls)) : std::nullopt;
}

std::optional<CoreInputs> library_attention_backward(const at::Tensor& dout, const CoreInputs& in,
                                                     const CoreResult& result, const CoreCall& call) {
  const Calls calls = library_calls(in, call);
  return calls.has_value() ? std::optional(attention_by_calls_backward(dout, in, result, call, *calls))
                           : std::nullopt;
}

}  // namespace metroplex::nn
