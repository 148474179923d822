#include "nn/delta_rule.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "nn/wide.h"

namespace metroplex::nn {
namespace {

constexpr int64_t kChunk = 64;

// x [s, b, hk, d] with each head repeated for its `copies` value heads.
at::Tensor copy_to_value_heads(const at::Tensor& x, int64_t copies) {
  return copies == 1 ? x : x.unsqueeze(3).expand({-1, -1, -1, copies, -1}).flatten(2, 3);
}
at::Tensor sum_value_heads(const at::Tensor& x, int64_t copies) {
  return copies == 1 ? x : x.unflatten(2, {x.size(2) / copies, copies}).sum(3);
}

double query_scale(const DeltaRuleInputs& in) { return 1 / std::sqrt(static_cast<double>(in.q.size(3))); }

at::Tensor chunk_product(const device::Target& target, const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor out = at::matmul(left, right);
  const double flops = 2.0 * static_cast<double>(out.numel()) * static_cast<double>(left.size(-1));
  device::issued(target, {"delta_rule_bmm", {&left, &right}, {&out}, {}, flops});
  return out;
}

// The ids of the last `s` rows and of the row before them, [b, 1 + s]. Without a row before, its id has no effect.
at::Tensor ids_with_previous(const at::Tensor& ids, int64_t s) {
  const at::Tensor padded = at::constant_pad_nd(ids, {1, 0});
  return padded.narrow(1, padded.size(1) - s - 1, s + 1);
}

// Rows in chunks of C: n chunks, the last one padded with zeros. A padding row keeps the state unchanged.
struct ChunkShape {
  int64_t s, n, chunk;

  explicit ChunkShape(int64_t rows)
      : s(rows),
        n((rows + kChunk - 1) / kChunk),
        chunk(std::min(kChunk, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))))) {}

  // [s, b, h, d] -> [n, b, h, C, d]; [s, b, h] -> [n, b, h, C].
  at::Tensor split(const at::Tensor& x) const {
    std::vector<int64_t> padding(static_cast<size_t>(2 * x.dim()), 0);
    padding.back() = n * chunk - s;
    const at::Tensor rows = at::constant_pad_nd(to_wide(x), padding).unflatten(0, {n, chunk});
    return rows.movedim(1, 3).contiguous();
  }
  at::Tensor join(const at::Tensor& x) const { return x.movedim(3, 1).flatten(0, 1).narrow(0, 0, s); }
};

// (I + below)^-1 for strictly lower triangular `below` [..., C, C], C a power of 2. Joins the inverses of diagonal
// blocks: the block below inverses X and Y is -Y below X.
at::Tensor invert_unit_lower(const device::Target& target, const at::Tensor& below) {
  const int64_t size = below.size(-1);
  const at::Tensor inverse = at::eye(size, below.options()).expand(below.sizes()).contiguous();
  for (int64_t block = 1; block < size; block *= 2) {
    const auto pairs = [&](const at::Tensor& x) {  // [..., 2, block, 2, block, pairs]
      const int64_t count = size / (2 * block);
      return x.unflatten(-1, {count, 2, block}).unflatten(-4, {count, 2, block}).diagonal(0, -6, -3);
    };
    const at::Tensor blocks = pairs(inverse).movedim(-1, -5), factors = pairs(below).movedim(-1, -5);
    const auto at_block = [](const at::Tensor& x, int64_t row, int64_t column) {
      return x.select(-4, row).select(-2, column);
    };
    const at::Tensor below_both = chunk_product(
        target, chunk_product(target, at_block(blocks, 1, 1), at_block(factors, 1, 0)), at_block(blocks, 0, 0));
    at_block(blocks, 1, 0).copy_(below_both.neg());
  }
  return inverse;
}

// The chunks of a call and their products; names follow the paper. All are [n, b, h, C, ...].
struct Chunks {
  device::Target target;
  at::Tensor q, k, v, beta;  // q is scaled; beta has a last dimension 1
  // decay[i][j]: of the state between tokens j and i of one document, 0 for i < j. decay_in[i][0]: of the chunk's
  // first state until token i. last_decay [..., 1, 1]: of the first state over the whole chunk. The decay from token
  // i to the end of the chunk is the last row of `decay`.
  at::Tensor decay, decay_in, last_decay;
  at::Tensor keys;                                 // k k^T
  at::Tensor queries;                              // q k^T
  at::Tensor inverse;                              // T = (I + tril(beta keys decay, -1))^-1
  at::Tensor read_keys, write_keys, read_queries;  // beta decay_in k; decay-to-end k; decay_in q

  at::Tensor product(const at::Tensor& left, const at::Tensor& right) const {
    return chunk_product(target, left, right);
  }
  at::Tensor decay_out() const { return decay.select(3, decay.size(3) - 1).unsqueeze(4); }
};

// same[i][j], as_before[i]: whether tokens belong to one document, and to that of the last token before the chunk.
struct ChunkDocuments {
  at::Tensor same, as_before;
  ChunkDocuments(const at::Tensor& document_ids, const ChunkShape& shape) {
    if (!document_ids.defined()) return;
    const at::Tensor ids = ids_with_previous(document_ids, shape.s);
    const at::Tensor last = ids.narrow(1, shape.s, 1).expand({ids.size(0), shape.n * shape.chunk - shape.s});
    const at::Tensor rows = at::cat({ids, last}, 1);
    const auto by_chunk = [&](int64_t first) {  // [n, b, 1, C]
      return rows.narrow(1, first, shape.n * shape.chunk)
          .unflatten(1, {shape.n, shape.chunk})
          .transpose(0, 1)
          .unsqueeze(2);
    };
    const at::Tensor own = by_chunk(1), before = by_chunk(0).narrow(3, 0, 1);
    same = at::eq(own.unsqueeze(4), own.unsqueeze(3));
    as_before = at::eq(own, before).unsqueeze(4);
  }
};

Chunks make_chunks(const device::Target& target, const DeltaRuleInputs& in, const at::Tensor& document_ids,
                   const ChunkShape& shape) {
  const int64_t copies = in.v.size(2) / in.k.size(2);
  Chunks chunks;
  chunks.target = target;
  chunks.q = shape.split(copy_to_value_heads(in.q, copies)).mul_(query_scale(in));
  chunks.k = shape.split(copy_to_value_heads(in.k, copies));
  chunks.v = shape.split(in.v);
  chunks.beta = shape.split(in.beta).unsqueeze(4);
  const at::Tensor log_decay = shape.split(in.g).unsqueeze(4);
  // A sum of g[j + 1 .. i] per entry: differences of prefix sums would cancel.
  chunks.decay = log_decay.expand({-1, -1, -1, -1, shape.chunk}).tril(-1).cumsum(3).exp_().tril_();
  chunks.decay_in = log_decay.cumsum(3).exp_();
  const ChunkDocuments documents(document_ids, shape);
  if (documents.same.defined()) {
    chunks.decay.mul_(documents.same);
    chunks.decay_in.mul_(documents.as_before);
  }
  chunks.last_decay = chunks.decay_in.narrow(3, shape.chunk - 1, 1);
  const at::Tensor transposed = chunks.k.transpose(3, 4);
  chunks.keys = chunks.product(chunks.k, transposed);
  chunks.queries = chunks.product(chunks.q, transposed);
  chunks.inverse = invert_unit_lower(target, at::mul(chunks.beta, chunks.keys).mul_(chunks.decay).tril_(-1));
  chunks.read_keys = at::mul(chunks.k, at::mul(chunks.beta, chunks.decay_in));
  chunks.write_keys = at::mul(chunks.k, chunks.decay_out());
  chunks.read_queries = at::mul(chunks.q, chunks.decay_in);
  return chunks;
}

struct States {
  at::Tensor before;  // [n, b, h, dk, dv]: state at the beginning of each chunk
  at::Tensor writes;  // [n, b, h, C, dv]: beta (v - S^T k) of each token
  at::Tensor last;    // [b, h, dk, dv]
};

States run_chunks(const Chunks& chunks, const at::Tensor& first) {
  const int64_t n = chunks.k.size(0);
  const at::Tensor values = chunks.product(chunks.inverse, at::mul(chunks.v, chunks.beta)),
                   keys = chunks.product(chunks.inverse, chunks.read_keys);
  at::Tensor state = first;
  if (!state.defined())
    state = at::zeros({chunks.k.size(1), chunks.k.size(2), chunks.k.size(4), chunks.v.size(4)}, chunks.k.options());
  std::vector<at::Tensor> before, writes;
  for (int64_t i = 0; i < n; ++i) {
    before.push_back(state);
    writes.push_back(at::sub(values[i], chunks.product(keys[i], state)));
    state = at::mul(state, chunks.last_decay[i])
                .add_(chunks.product(chunks.write_keys[i].transpose(2, 3), writes.back()));
  }
  return {at::stack(before), at::stack(writes), state};
}

// Gradients that pass between the chunks, in reverse order.
struct StateGradients {
  at::Tensor after;   // [n, b, h, dk, dv]: of the state at the end of each chunk
  at::Tensor writes;  // of inverse^-1 writes
};

StateGradients run_chunks_backward(const at::Tensor& dout, const Chunks& chunks) {
  const int64_t n = chunks.k.size(0);
  const at::Tensor own = chunks.product(at::mul(chunks.queries, chunks.decay).transpose(3, 4), dout),
                   reads = chunks.product(chunks.read_queries.transpose(3, 4), dout);
  std::vector<at::Tensor> after(static_cast<size_t>(n)), writes(static_cast<size_t>(n));
  at::Tensor gradient = at::zeros_like(reads[0]);
  for (int64_t i = n - 1; i >= 0; --i) {
    const auto chunk = static_cast<size_t>(i);
    after[chunk] = gradient;
    writes[chunk] = chunks.product(chunks.inverse[i].transpose(2, 3),
                                   at::add(own[i], chunks.product(chunks.write_keys[i], gradient)));
    gradient = at::mul(gradient, chunks.last_decay[i])
                   .add_(reads[i])
                   .sub_(chunks.product(chunks.read_keys[i].transpose(2, 3), writes[chunk]));
  }
  return {at::stack(after), at::stack(writes)};
}

at::Tensor row_dot(const at::Tensor& x, const at::Tensor& y) { return at::mul(x, y).sum(4, /*keepdim=*/true); }
// The sum over this and later tokens of a chunk.
at::Tensor reverse_cumsum(const at::Tensor& x) {
  return at::matmul(at::ones({x.size(3), x.size(3)}, x.options()).triu_(), x);
}

}  // namespace

DeltaRuleResult recurrent_delta_rule(const DeltaRuleInputs& in, const at::Tensor& document_ids,
                                     const at::Tensor& state) {
  const int64_t rows = in.v.size(0), copies = in.v.size(2) / in.k.size(2);
  const at::Tensor queries = copy_to_value_heads(to_wide(in.q), copies).mul(query_scale(in)),
                   keys = copy_to_value_heads(to_wide(in.k), copies), values = to_wide(in.v),
                   decay = to_wide(in.g).exp().unsqueeze(3).unsqueeze(4), beta = to_wide(in.beta).unsqueeze(3);
  at::Tensor now = state, continues;
  if (!now.defined())
    now = at::zeros({values.size(1), values.size(2), keys.size(3), values.size(3)}, values.options());
  if (document_ids.defined()) {
    const at::Tensor ids = ids_with_previous(document_ids, rows).t();
    continues = at::eq(ids.narrow(0, 1, rows), ids.narrow(0, 0, rows)).view({rows, -1, 1, 1, 1});
  }
  std::vector<at::Tensor> out;
  for (int64_t row = 0; row < rows; ++row) {
    now = at::mul(now, decay[row]);
    if (continues.defined()) now = at::mul(now, continues[row]);
    const at::Tensor read = at::matmul(keys[row].unsqueeze(2), now).squeeze(2);
    const at::Tensor write = at::mul(at::sub(values[row], read), beta[row]);
    now = at::add(now, at::mul(keys[row].unsqueeze(3), write.unsqueeze(2)));
    out.push_back(at::matmul(queries[row].unsqueeze(2), now).squeeze(2));
  }
  return {at::stack(out), now};
}

struct ChunkedDeltaRule::Work {
  ChunkShape shape;
  int64_t copies;  // value heads per key head
  double scale;
  Chunks chunks;
  States states;
};

ChunkedDeltaRule::ChunkedDeltaRule(const DeltaRuleInputs& in, const at::Tensor& document_ids, const at::Tensor& state,
                                   const device::Target& target) {
  const ChunkShape shape(in.v.size(0));
  const Chunks chunks = make_chunks(target, in, document_ids, shape);
  work_ = std::make_unique<const Work>(
      Work{shape, in.v.size(2) / in.k.size(2), query_scale(in), chunks, run_chunks(chunks, state)});
}

ChunkedDeltaRule::~ChunkedDeltaRule() = default;

DeltaRuleResult ChunkedDeltaRule::result() const {
  const auto& [shape, copies, scale, chunks, states] = *work_;
  const at::Tensor out = chunks.product(chunks.read_queries, states.before)
                             .add_(chunks.product(at::mul(chunks.queries, chunks.decay), states.writes));
  return {shape.join(out), states.last};
}

DeltaRuleInputs ChunkedDeltaRule::backward(const at::Tensor& dout) const {
  const auto& [shape, copies, scale, chunks, states] = *work_;
  const at::Tensor dy = shape.split(dout);
  const StateGradients gradients = run_chunks_backward(dy, chunks);
  const at::Tensor writes = states.writes.transpose(3, 4);
  // out = read_queries before + (queries decay) writes;  after = last_decay before + write_keys^T writes
  const at::Tensor dread_queries = chunks.product(dy, states.before.transpose(3, 4)),
                   dwrite_keys = chunks.product(states.writes, gradients.after.transpose(3, 4)),
                   dattention = chunks.product(dy, writes);
  // writes = inverse (beta v - read_keys before), and the gradient of inverse^-1 is -dwrites writes^T.
  const at::Tensor dread_keys = chunks.product(gradients.writes, states.before.transpose(3, 4)).neg_(),
                   dmatrix = chunks.product(gradients.writes, writes).neg_().tril_(-1);
  const at::Tensor beta_decay = at::mul(chunks.beta, chunks.decay);

  const at::Tensor dqueries = at::mul(dattention, chunks.decay), dkeys = at::mul(dmatrix, beta_decay);
  const at::Tensor dq = chunks.product(dqueries, chunks.k).add_(at::mul(dread_queries, chunks.decay_in));
  const at::Tensor dk = chunks.product(dqueries.transpose(3, 4), chunks.q)
                            .add_(chunks.product(at::add(dkeys, dkeys.transpose(3, 4)), chunks.k))
                            .add_(at::mul(dread_keys, at::mul(chunks.beta, chunks.decay_in)))
                            .add_(at::mul(dwrite_keys, chunks.decay_out()));
  const at::Tensor dv = at::mul(gradients.writes, chunks.beta);
  const at::Tensor dread = row_dot(dread_keys, chunks.k);
  const at::Tensor dbeta = row_dot(gradients.writes, chunks.v)
                               .add_(row_dot(dmatrix, at::mul(chunks.keys, chunks.decay)))
                               .add_(at::mul(dread, chunks.decay_in));

  // Gradients of the logarithms of both decays, which are sums of g.
  const at::Tensor ddecay =
      at::mul(dattention, chunks.queries).add_(at::mul(dmatrix, at::mul(chunks.beta, chunks.keys)));
  const int64_t last = shape.chunk - 1;
  ddecay.select(3, last).add_(row_dot(dwrite_keys, chunks.k).squeeze(4));
  const at::Tensor ddecay_in = row_dot(dread_queries, chunks.q).add_(at::mul(dread, chunks.beta));
  ddecay_in.narrow(3, last, 1).add_(at::mul(gradients.after, states.before).sum({3, 4}, /*keepdim=*/true));
  const at::Tensor dg = reverse_cumsum(at::mul(ddecay, chunks.decay))
                            .tril_(-1)
                            .sum(4, /*keepdim=*/true)
                            .add_(reverse_cumsum(at::mul(ddecay_in, chunks.decay_in)));

  return {sum_value_heads(shape.join(dq), copies).mul(scale), sum_value_heads(shape.join(dk), copies), shape.join(dv),
          shape.join(dg.squeeze(4)), shape.join(dbeta.squeeze(4))};
}

}  // namespace metroplex::nn
