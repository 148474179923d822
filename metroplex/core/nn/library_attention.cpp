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

CoreResult run_fused(const CoreInputs& in, const CoreCall& call, const FusedSpec& spec) {
  const auto [out, logsumexp] = fused_attention(call.spec.target, heads_first(in), spec);
  return {sequence_first(out), logsumexp};
}
CoreInputs run_fused_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                              const CoreCall& call, const FusedSpec& spec) {
  const FusedGradients gradients = fused_attention_backward(
      call.spec.target, heads_first(in), {heads_first(result.out), result.logsumexp, heads_first(dout)}, spec);
  return {sequence_first(gradients.q), sequence_first(gradients.k), sequence_first(gradients.v)};
}

// True for a single query at or after the position of every key, as in generation. Nothing is masked then.
bool sees_all_keys(const CoreInputs& in, const CorePositions& positions) {
  return in.q.size(0) == 1 && !positions.queries.rows.defined() && !positions.keys.rows.defined() &&
         positions.queries.first >= positions.keys.first + in.k.size(0) - 1;
}

config::ParamsDtype to_params_dtype(const at::Tensor& x) {
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
  const bool documents = batch.documents.ids.defined();
  if (documents && !(batch.documents.offsets.defined() && batch.documents.ids.size(1) == in.q.size(0))) return false;
  return is_plain_causal(in, call.positions) ||
         (sees_all_keys(in, call.positions) && !documents && call.spec.window < 0);
}

// Sets all fields except plain_mask and the numbers of queries and keys.
config::AttentionCase make_case(const CoreInputs& in, const CoreCall& call) {
  const CoreSpec& spec = call.spec;
  config::AttentionCase c{to_params_dtype(in.q), spec.head_dim, spec.v_head_dim};
  c.capped = spec.softcap != 0;
  c.sinks = spec.softmax != config::SoftmaxType::vanilla;
  c.window = spec.window >= 0;
  c.dropout = spec.dropout.active(call.batch);
  c.documents = call.batch.documents.ids.defined();
  c.capability = spec.target.capability();
  c.deterministic = at::globalContext().deterministicAlgorithms();
  return c;
}

// The operator for one call. AttentionBy::own: no GPU operator of libtorch can compute it without a mask tensor.
FusedSpec select_operator(const CoreInputs& in, const CoreCall& call) {
  config::AttentionCase c = make_case(in, call);
  c.plain_mask = call.spec.chunk == 0 && plain_mask(in, call);
  c.queries = in.q.size(0), c.keys = in.k.size(0);
  FusedSpec spec{config::gpu_attention(c).by, is_plain_causal(in, call.positions), call.spec.softmax_scale};
  spec.window = call.spec.window;
  spec.documents = {call.batch.documents.offsets, call.batch.documents.offsets};
  return spec;
}

bool is_known_on_host(const Positions& positions, int64_t rows) {
  return positions.rows.defined() && rows > 0 && num_rows(positions.ranges) == rows;
}
// Requires half types. fp32 uses memory-efficient attention, whose logsumexp has another shape.
bool has_host_rows(const CoreInputs& in, const CorePositions& positions) {
  return is_half(in.q) && is_known_on_host(positions.queries, in.q.size(0)) &&
         is_known_on_host(positions.keys, in.k.size(0));
}

using Calls = std::optional<LibraryCalls>;

Calls make_single_call(const CoreInputs& in, const CoreCall& call) {
  const FusedSpec spec = select_operator(in, call);
  if (spec.by == AttentionBy::own) return std::nullopt;
  return LibraryCalls{{{0, in.q.size(0)}, {0, in.k.size(0)}, spec, {}}};
}

Positions sorted_order(const Positions& positions) {
  const RowOrder order(positions.ranges);
  return {0, order.sorted_order(positions.rows), positions.whole, order.positions()};
}

Calls make_block_calls(const CoreInputs& in, const CoreCall& call, const std::vector<AttentionBlock>& blocks) {
  config::AttentionCase c = make_case(in, call);
  if (c.documents && (!call.batch.documents.offsets.defined() || call.spec.chunk > 0)) return std::nullopt;
  LibraryCalls calls;
  for (const AttentionBlock& block : blocks) {
    c.queries = block.queries.count, c.keys = block.keys.count, c.window = block.window >= 0;
    const FusedSpec spec{config::gpu_attention(c).by, block.causal, call.spec.softmax_scale, block.window};
    if (spec.by == AttentionBy::own) return std::nullopt;
    calls.push_back({block.queries, block.keys, spec, {}});
  }
  if (!c.documents) return calls;
  const CorePositions ordered{sorted_order(call.positions.queries), sorted_order(call.positions.keys)};
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::optional<BlockDocuments> documents = block_documents(call.batch, blocks[i], ordered);
    if (!documents) return std::nullopt;
    calls[i].spec.documents = documents->rows;
    calls[i].hidden = documents->hidden;
  }
  return calls;
}

// The blocks of chunks over consecutive positions.
Calls make_chunk_calls(const CoreInputs& in, const CoreCall& call) {
  const CorePositions& at = call.positions;
  return make_block_calls(in, call,
                          attention_blocks({{at.queries.first, in.q.size(0)}}, {{at.keys.first, in.k.size(0)}},
                                           /*window=*/-1, call.spec.chunk));
}

// Returns nullopt if an operator would need a mask tensor, and an empty list if no query sees a key.
Calls make_library_calls(const CoreInputs& in, const CoreCall& call) {
  const bool consecutive = !call.positions.queries.rows.defined() && !call.positions.keys.rows.defined();
  if (call.spec.chunk > 0 && consecutive && is_half(in.q)) return make_chunk_calls(in, call);
  if (!has_host_rows(in, call.positions)) return make_single_call(in, call);
  const std::vector<IndexRange> queries = RowOrder(call.positions.queries.ranges).positions(),
                                keys = RowOrder(call.positions.keys.ranges).positions();
  const bool is_same_range = queries.size() == 1 && keys.size() == 1 && queries[0].first == keys[0].first &&
                             queries[0].count == keys[0].count;
  const at::Tensor& documents = call.batch.documents.ids;
  if (!is_same_range || call.spec.chunk > 0 || (documents.defined() && documents.size(1) != queries[0].count))
    return make_block_calls(in, call, attention_blocks(queries, keys, call.spec.window, call.spec.chunk));
  const Positions range{queries[0].first, {}, 0};
  const CorePositions plain{range, range};
  return make_single_call(in, {call.spec, plain, call.batch});
}

// Sorts queries and keys by position if they have explicit positions.
struct SortedRows {
  RowOrder queries, keys;

  explicit SortedRows(const CorePositions& positions)
      : queries(positions.queries.ranges), keys(positions.keys.ranges) {}
  CoreInputs sorted_order(const CoreInputs& in) const {
    return {queries.sorted_order(in.q), keys.sorted_order(in.k), keys.sorted_order(in.v)};
  }
  CoreInputs input_order(const CoreInputs& gradients) const {
    return {queries.input_order(gradients.q), keys.input_order(gradients.k), keys.input_order(gradients.v)};
  }
  CoreResult sorted_order(const CoreResult& result) const {
    return {queries.sorted_order(result.out), queries.sorted_order(result.logsumexp, 2)};
  }
  CoreResult input_order(const CoreResult& result) const {
    return {queries.input_order(result.out), queries.input_order(result.logsumexp, 2)};
  }
};

at::Tensor narrow_rows(const at::Tensor& x, const IndexRange& rows) { return x.narrow(0, rows.first, rows.count); }
CoreInputs narrow_rows(const CoreInputs& in, const LibraryCall& part) {
  return {narrow_rows(in.q, part.queries), narrow_rows(in.k, part.keys), narrow_rows(in.v, part.keys)};
}
// If all queries are selected, the logsumexp is unchanged, because it may be padded.
CoreResult narrow_rows(const CoreResult& all, const IndexRange& queries) {
  if (queries.count == all.out.size(0)) return all;
  return {narrow_rows(all.out, queries), all.logsumexp.narrow(2, queries.first, queries.count)};
}

// Sums results of calls that each cover some rows.
class CallSums {
 public:
  explicit CallSums(const at::Tensor& like) : like_(like) {}
  void add(const IndexRange& rows, const at::Tensor& part) {
    if (!sum_.defined() && rows.count == like_.size(0)) {
      sum_ = part;
      return;
    }
    const at::ScalarType wide = acc_type(like_.scalar_type());
    sum_ = sum_.defined() ? sum_.to(wide) : at::zeros(like_.sizes(), like_.options().dtype(wide));
    narrow_rows(sum_, rows).add_(part);
  }
  at::Tensor take() { return sum_.defined() ? sum_.to(like_.scalar_type()) : at::zeros_like(like_); }

 private:
  at::Tensor like_, sum_;
};

CoreResult empty_result(const CoreInputs& in) {
  const int64_t s = in.q.size(0), b = in.q.size(1), heads = in.q.size(2);
  const at::TensorOptions wide = in.q.options().dtype(acc_type(in.q.scalar_type()));
  return {at::zeros({s, b, heads, in.v.size(3)}, in.q.options()), at::full({b, heads, s}, -kInfinity, wide)};
}

// Joins the results of calls with the same queries by logsumexp.
class JoinedCalls {
 public:
  explicit JoinedCalls(const CoreInputs& in) : in_(in) {}
  void add(const IndexRange& queries, const CoreResult& part) {
    if (!all_.out.defined() && queries.count == in_.q.size(0)) {
      all_ = part;
      num_covered_ = queries.count;
      return;
    }
    if (!all_.out.defined()) all_ = empty_result(in_);
    const bool first = queries.first >= num_covered_;
    if (!first) all_.out = to_wide(all_.out);
    num_covered_ = std::max(num_covered_, queries.first + queries.count);
    CoreResult covered = narrow_rows(all_, queries);
    const at::Tensor sums = covered.logsumexp;
    if (first) covered = {covered.out.copy_(part.out), part.logsumexp};
    else join(covered, part);
    sums.copy_(covered.logsumexp);
  }
  CoreResult take() {
    return all_.out.defined() ? CoreResult{all_.out.to(in_.q.scalar_type()), all_.logsumexp} : empty_result(in_);
  }

 private:
  const CoreInputs& in_;
  CoreResult all_;
  int64_t num_covered_ = 0;  // first query that no call has covered
};

CoreResult run_call(const CoreInputs& in, const CoreCall& call, const LibraryCall& part) {
  const CoreResult result = run_fused(narrow_rows(in, part), call, part.spec);
  if (!part.hidden.defined()) return result;
  return {result.out.masked_fill_(part.hidden.permute({2, 0, 1}).unsqueeze(3), 0),
          result.logsumexp.masked_fill_(part.hidden, -kInfinity)};
}

CoreResult forward_sorted(const CoreInputs& in, const CoreCall& call, const LibraryCalls& calls) {
  JoinedCalls all(in);
  for (const LibraryCall& part : calls) all.add(part.queries, run_call(in, call, part));
  return all.take();
}

// Operators compute probabilities as exp(score - logsumexp), so +inf gives hidden queries probability 0.
CoreResult narrow_for_backward(const CoreResult& result, const LibraryCall& part) {
  CoreResult narrowed = narrow_rows(result, part.queries);
  if (part.hidden.defined()) narrowed.logsumexp = narrowed.logsumexp.masked_fill(part.hidden, kInfinity);
  return narrowed;
}

CoreInputs backward_sorted(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                           const CoreCall& call, const LibraryCalls& calls) {
  CallSums q(in.q), k(in.k), v(in.v);
  for (const LibraryCall& part : calls) {
    const CoreInputs gradients = run_fused_backward(narrow_rows(dout, part.queries), narrow_rows(in, part),
                                                    narrow_for_backward(result, part), call, part.spec);
    q.add(part.queries, gradients.q);
    k.add(part.keys, gradients.k);
    v.add(part.keys, gradients.v);
  }
  return {q.take(), k.take(), v.take()};
}

}  // namespace

CoreResult attention_by_calls(const CoreInputs& in, const CoreCall& call, const LibraryCalls& calls) {
  const SortedRows rows(call.positions);
  return rows.input_order(forward_sorted(rows.sorted_order(in), call, calls));
}

CoreInputs attention_by_calls_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call, const LibraryCalls& calls) {
  const SortedRows rows(call.positions);
  return rows.input_order(backward_sorted(rows.queries.sorted_order(dout), rows.sorted_order(in),
                                          rows.sorted_order(result), call, calls));
}

std::optional<CoreResult> library_attention(const CoreInputs& in, const CoreCall& call) {
  const Calls calls = make_library_calls(in, call);
  return calls.has_value() ? std::optional(attention_by_calls(in, call, *calls)) : std::nullopt;
}

std::optional<CoreInputs> library_attention_backward(const at::Tensor& dout, const CoreInputs& in,
                                                     const CoreResult& result, const CoreCall& call) {
  const Calls calls = make_library_calls(in, call);
  return calls.has_value() ? std::optional(attention_by_calls_backward(dout, in, result, call, *calls))
                           : std::nullopt;
}

}  // namespace metroplex::nn
