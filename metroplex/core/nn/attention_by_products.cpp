#include "nn/attention_by_products.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/round_up.h"
#include "kernels/attention_scores.h"
#include "nn/attention_mask.h"
#include "nn/wide.h"

namespace metroplex::nn {
namespace {
using kernels::ScoreBlock;

constexpr int64_t kMinQueries = 16, kQueryStep = 64;

int64_t round_up_keys(int64_t keys) { return base::round_up(keys, kernels::kScoreColumns); }

// A range of head groups, counted over all samples, and a range of queries. The `queries` rows of all heads of a
// group form the rows of one product, because they share their keys.
struct ScoreChunk {
  int64_t first_group, groups, each, first_query, queries, first_key, keys;

  ScoreBlock block() const {
    return {first_group * each, groups * each, first_query, queries, first_key, keys, round_up_keys(keys)};
  }
  at::Tensor view_heads(const at::Tensor& rows) const { return rows.view({groups, each, queries, rows.size(2)}); }
  // Selects this chunk's rows of x [all groups, each, queries, d].
  at::Tensor narrow_chunk(const at::Tensor& x_gesd) const {
    return x_gesd.narrow(0, first_group, groups).narrow(2, first_query, queries);
  }
  at::Tensor chunk_rows(const at::Tensor& x_gesd) const {
    return narrow_chunk(x_gesd).reshape({groups, each * queries, -1});
  }
  at::Tensor chunk_keys(const at::Tensor& x_gsd) const {
    return x_gsd.narrow(0, first_group, groups).narrow(1, first_key, keys);
  }
};

// [s, b, groups * each, d] -> [b * groups, each, s, d]
at::Tensor by_group(const at::Tensor& x, int64_t groups) {
  const int64_t each = groups == 0 ? 0 : x.size(2) / groups;
  return x.unflatten(2, {groups, each}).permute({1, 2, 3, 0, 4}).flatten(0, 1);
}

// Restricts the chunk to keys that its queries may see. The range starts and ends at multiples of kScoreColumns.
void restrict_keys(const kernels::AttentionShape& shape, ScoreChunk& chunk) {
  chunk.first_key = 0, chunk.keys = shape.keys;
  if (shape.query_rows.chosen != nullptr || shape.key_rows.chosen != nullptr) return;
  const int64_t first = shape.query_rows.first + chunk.first_query - shape.key_rows.first,
                last = first + chunk.queries - 1;
  const int64_t reach = shape.reach_from(shape.query_rows.first + chunk.first_query);
  const int64_t begin = reach < first ? (first - reach) / kernels::kScoreColumns * kernels::kScoreColumns : 0;
  const int64_t end = std::min(shape.keys, round_up_keys(std::max<int64_t>(0, last + 1)));
  chunk.first_key = std::min(begin, end), chunk.keys = end - chunk.first_key;
}

template <class Body>
void for_each_chunk(const kernels::AttentionShape& shape, bool has_positions, int64_t score_bytes, int64_t element,
                    const Body& body) {
  const int64_t all = shape.samples * shape.groups, each = shape.groups == 0 ? 0 : shape.heads / shape.groups;
  if (all == 0 || shape.queries == 0) return;
  const int64_t query_bytes = std::max<int64_t>(1, each * shape.keys * element),
                max_queries = std::max<int64_t>(1, score_bytes / query_bytes);
  const int64_t groups = std::clamp<int64_t>(max_queries / kMinQueries, 1, all);
  int64_t queries = std::max(kMinQueries, max_queries / groups);
  if (queries > kQueryStep) queries = queries / kQueryStep * kQueryStep;
  for (int64_t group = 0; group < all; group += groups) {
    for (int64_t query = 0; query < shape.queries; query += queries) {
      ScoreChunk chunk{
          group, std::min(groups, all - group), each, query, std::min(queries, shape.queries - query), 0, shape.keys};
      if (!has_positions) restrict_keys(shape, chunk);
      body(chunk);
    }
  }
}

// Computes to [n, rows, columns] = a b, or += a b if `adds`. Half inputs may have an fp32 result on a GPU only.
void batched_product(const device::Target& target, at::Tensor to, const at::Tensor& a, const at::Tensor& b,
                     bool adds = false) {
  const bool wider = to.scalar_type() != a.scalar_type();
  MPX_ASSERT(!wider || target.gpu(), "a CPU adds products of halves in halves");
  if (!target.meta) {
    if (wider) adds ? at::baddbmm_out(to, to, a, b, at::kFloat) : at::bmm_out(to, a, b, at::kFloat);
    else adds ? at::baddbmm_out(to, to, a, b) : at::bmm_out(to, a, b);
  }
  const at::Tensor* const before = adds ? &to : nullptr;
  device::issued(target, {adds ? "attention_baddbmm" : "attention_bmm",
                          {before, &a, &b},
                          {&to},
                          {},
                          2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(2))});
}

struct Products {
  const CoreCall& call;
  AttentionMask mask;
  at::ScalarType type;
  at::Tensor q, k, v;  // [b g, n / g, s_q, d], [b g, s_k, d], [b g, s_k, dv]

  Products(const CoreInputs& in, const CoreCall& core_call)
      : call(core_call),
        mask(attention_mask(in, core_call)),
        type(in.q.scalar_type()),
        q(by_group(in.q, mask.shape.groups)),
        k(by_group(in.k, mask.shape.groups).squeeze(1)),
        v(by_group(in.v, mask.shape.groups).squeeze(1)) {}

  const device::Target& target() const { return call.spec.target; }
  // Allocates [groups, each * queries, keys] with a row stride of block.stride.
  at::Tensor scores(const ScoreChunk& chunk, at::ScalarType of) const {
    const ScoreBlock block = chunk.block();
    return at::empty({chunk.groups, chunk.each * chunk.queries, block.stride}, q.options().dtype(of))
        .narrow(2, 0, chunk.keys);
  }
  at::Tensor product(const ScoreChunk& chunk, const at::Tensor& rows, const at::Tensor& keys) const {
    at::Tensor to = scores(chunk, acc_type(type));
    batched_product(target(), to, rows, chunk.chunk_keys(keys).transpose(1, 2));
    return to;
  }
  template <class Body>
  void visit_chunks(int64_t score_bytes, const Body& body) const {
    const bool has_positions = call.positions.queries.rows.defined() || call.positions.keys.rows.defined();
    for_each_chunk(mask.shape, has_positions, score_bytes, acc_type(type) == at::kDouble ? 8 : 4, body);
  }
};

void softmax(const Products& products, const ScoreChunk& chunk, const at::Tensor& scores,
             const at::Tensor& probabilities, const at::Tensor& logsumexp) {
  dispatch_element(products.type, [&](auto zero) {
    using T = decltype(zero);
    const kernels::AttentionSoftmax<T> operands{elements<kernels::Wide<T>>(scores), elements<T>(probabilities),
                                                elements<kernels::Wide<T>>(logsumexp)};
    device::launch(
        products.target(),
        {"attention_softmax",
         {&scores, &products.call.positions.queries.rows, &products.call.positions.keys.rows,
          &products.mask.documents, &products.mask.dropout.counters},
         {&probabilities, &logsumexp},
         {{"key", products.mask.shape.dropout.key}, {"probability", products.mask.shape.dropout.probability}}},
        kernels::attention_softmax<T>, kernels::attention_softmax_cuda<T>, operands, products.mask.shape,
        chunk.block());
  });
}

struct ScoreGradients {
  at::Tensor probabilities, dscores;
};
ScoreGradients softmax_backward(const Products& products, const ScoreChunk& chunk, const at::Tensor& scores,
                                const at::Tensor& dprobabilities, const CoreResult& result, const at::Tensor& dout) {
  const ScoreGradients made{products.scores(chunk, products.type), products.scores(chunk, products.type)};
  dispatch_element(products.type, [&](auto zero) {
    using T = decltype(zero);
    using W = kernels::Wide<T>;
    const kernels::AttentionSoftmaxBackward<T> operands{elements<W>(scores),
                                                        elements<W>(dprobabilities),
                                                        elements<W>(result.logsumexp),
                                                        attention_operand<const T>(result.out),
                                                        attention_operand<const T>(dout),
                                                        elements<T>(made.probabilities),
                                                        elements<T>(made.dscores)};
    device::launch(
        products.target(),
        {"attention_softmax_backward",
         {&scores, &dprobabilities, &result.logsumexp, &result.out, &dout, &products.call.positions.queries.rows,
          &products.call.positions.keys.rows, &products.mask.documents, &products.mask.dropout.counters},
         {&made.probabilities, &made.dscores},
         {{"key", products.mask.shape.dropout.key}, {"probability", products.mask.shape.dropout.probability}}},
        kernels::attention_softmax_backward<T>, kernels::attention_softmax_backward_cuda<T>, operands,
        products.mask.shape, chunk.block());
  });
  return made;
}

// Zeroed sums for the gradient of keys or values; to_input_layout() converts them to the layout of the input.
at::Tensor zero_sums(const at::Tensor& x_gsd) {
  return at::zeros(x_gsd.sizes(), x_gsd.options().dtype(acc_type(x_gsd.scalar_type())));
}
at::Tensor to_input_layout(const at::Tensor& sums_gsd, const at::Tensor& like) {
  at::Tensor to = at::empty(like.sizes(), like.options());
  by_group(to, like.size(2)).squeeze(1).copy_(sums_gsd);
  return to;
}

}  // namespace

CoreResult attention_by_products(const CoreInputs& in, const CoreCall& call, int64_t score_bytes) {
  const Products products(in, call);
  const at::Tensor out = at::empty({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, in.q.options());
  const at::Tensor logsumexp =
      at::empty({in.q.size(1), in.q.size(2), in.q.size(0)}, in.q.options().dtype(acc_type(products.type)));
  const at::Tensor to = by_group(out, products.mask.shape.groups);
  products.visit_chunks(score_bytes, [&](const ScoreChunk& chunk) {
    const at::Tensor probabilities = products.scores(chunk, products.type);
    softmax(products, chunk, products.product(chunk, chunk.chunk_rows(products.q), products.k), probabilities,
            logsumexp);
    at::Tensor rows = at::empty({chunk.groups, chunk.each * chunk.queries, in.v.size(3)}, in.q.options());
    batched_product(products.target(), rows, probabilities, chunk.chunk_keys(products.v));
    chunk.narrow_chunk(to).copy_(chunk.view_heads(rows));
  });
  return {out, logsumexp};
}

CoreInputs attention_by_products_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                          const CoreCall& call, int64_t score_bytes) {
  const Products products(in, call);
  const at::Tensor dy = dout.stride(3) == 1 ? dout : dout.contiguous();
  const at::Tensor dq = at::empty(in.q.sizes(), in.q.options()), dk = zero_sums(products.k),
                   dv = zero_sums(products.v);
  const at::Tensor to = by_group(dq, products.mask.shape.groups),
                   gradients = by_group(dy, products.mask.shape.groups);
  products.visit_chunks(score_bytes, [&](const ScoreChunk& chunk) {
    const at::Tensor q = chunk.chunk_rows(products.q), d = chunk.chunk_rows(gradients);
    const ScoreGradients made = [&] {  // frees the scores before the next allocation
      const at::Tensor scores = products.product(chunk, q, products.k),
                       dprobabilities = products.product(chunk, d, products.v);
      return softmax_backward(products, chunk, scores, dprobabilities, result, dy);
    }();
    batched_product(products.target(), chunk.chunk_keys(dv), made.probabilities.transpose(1, 2), d, true);
    batched_product(products.target(), chunk.chunk_keys(dk), made.dscores.transpose(1, 2), q, true);
    at::Tensor rows = at::empty({chunk.groups, chunk.each * chunk.queries, in.q.size(3)}, in.q.options());
    batched_product(products.target(), rows, made.dscores, chunk.chunk_keys(products.k));
    chunk.narrow_chunk(to).copy_(chunk.view_heads(rows));
  });
  return {dq, to_input_layout(dk, in.k), to_input_layout(dv, in.v)};
}

}  // namespace metroplex::nn
