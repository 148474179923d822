// A team of threads processes one row of scores: a GPU warp or block, or one CPU thread. The threads share the
// row's quads of adjacent keys. CPU and GPU use the same code (nvcc needs --expt-relaxed-constexpr). A team has
// `lane`, `lanes`, an exponential, and the reductions largest(x) and sum(x), which all its threads must call.
#pragma once

#include <cmath>

#include "kernels/attention_scores.h"
#include "kernels/dropout_block.h"

namespace metroplex::kernels {

constexpr int kQuad = 4;  // adjacent keys: one Philox block

template <class W>
constexpr W kNoScore = static_cast<W>(-__builtin_huge_val());

// Location of a row in a block, and its visible columns.
struct ScoreRow {
  int64_t head, sample, query, place, document;  // head index over all samples
  int begin, end;                                // columns outside [begin, end) are hidden
  bool looks;                                    // columns inside must be tested one by one

  constexpr ScoreRow(const AttentionShape& shape, const ScoreBlock& block, int64_t row) {
    const Divided of_queries = divided(row, block.queries);
    head = block.first_head + of_queries.quotient;
    sample = divided(head, shape.heads).quotient;
    query = block.first_query + of_queries.remainder;
    place = shape.query_rows.place(query);
    document = shape.document(sample, place);
    begin = 0, end = static_cast<int>(block.keys);
    looks = shape.key_rows.chosen != nullptr || shape.documents != nullptr;
    if (shape.key_rows.chosen != nullptr) return;
    const int64_t own = place - shape.key_rows.first - block.first_key;  // column of the query's own position
    if (own + 1 < end) end = own + 1 < 0 ? 0 : static_cast<int>(own + 1);
    const int64_t reach = shape.reach_from(place);
    if (reach < own) begin = own - reach < end ? static_cast<int>(own - reach) : end;
  }
  constexpr bool sees(const AttentionShape& shape, const ScoreBlock& block, int column) const {
    return column >= begin && column < end && (!looks || shape.sees(sample, query, block.first_key + column));
  }
};

// Scores of adjacent keys after scaling, capping and masking, and the visibility of each key.
template <class W>
struct ScoreQuad {
  Quad<W> x;
  bool seen[kQuad];
};

template <class W>
constexpr W capped(const AttentionShape& shape, W score) {
  using std::tanh;
  if (!(shape.softcap > 0)) return score;
  const W cap = static_cast<W>(shape.softcap);
  return cap * tanh(score / cap);
}
// Derivative of the cap, given the capped score.
template <class W>
constexpr W cap_slope(const AttentionShape& shape, W score) {
  if (!(shape.softcap > 0)) return W(1);
  const W share = score / static_cast<W>(shape.softcap);
  return W(1) - share * share;
}

// This is a function because a namespace-scope constant would be a host object, which device code cannot read.
constexpr QuadLanes whole_quad() { return {0, kQuad, true}; }

template <class W>
constexpr ScoreQuad<W> score_quad(const AttentionShape& shape, const ScoreBlock& block, const ScoreRow& row,
                                  const W* scores, int column) {
  ScoreQuad<W> quad{load_quad(scores, column, whole_quad()), {}};
  for (int c = 0; c < kQuad; ++c) {
    quad.seen[c] = row.sees(shape, block, column + c);
    quad.x.values[c] =
        quad.seen[c] ? capped(shape, quad.x.values[c] * static_cast<W>(shape.softmax_scale)) : kNoScore<W>;
  }
  return quad;
}

// The keys of a quad usually share one Philox block, which is then computed only once.
template <class W>
constexpr Quad<W> dropout_factors(const AttentionShape& shape, const ScoreBlock& score_block,
                                  const DropoutFactor<W>& factor, const DropoutRow& row, int column,
                                  const ScoreQuad<W>& quad) {
  Quad<W> factors{{W(1), W(1), W(1), W(1)}};
  if (!(shape.dropout.probability > 0)) return factors;
  const auto draw = [&](int64_t block) {
    return base::philox4x32(shape.dropout.key, static_cast<uint64_t>(block), row.counter);
  };
  const int64_t first = row.start + score_block.first_key + column;
  if (shape.key_rows.chosen == nullptr && first % kPhiloxWords == 0) {
    const base::PhiloxBlock bits = draw(first / kPhiloxWords);
    for (int c = 0; c < kQuad; ++c) factors.values[c] = factor(bits, c);
    return factors;
  }
  base::PhiloxBlock bits{};
  int64_t drawn = -1;
  for (int c = 0; c < kQuad; ++c) {
    if (!quad.seen[c]) continue;
    const int64_t element = shape.key_rows.chosen == nullptr
                                ? first + c
                                : row.start + shape.key_rows.place(score_block.first_key + column + c),
                  block = element / kPhiloxWords;
    if (block != drawn) bits = draw(block);
    drawn = block;
    factors.values[c] = factor(bits, element % kPhiloxWords);
  }
  return factors;
}

constexpr DropoutRow make_dropout_row(const AttentionShape& shape, const ScoreRow& row) {
  return shape.dropout.probability > 0 ? dropout_row(shape.dropout, row.head * shape.queries + row.query)
                                       : DropoutRow{};
}

template <class T, class Team>
constexpr void softmax_row(const AttentionSoftmax<T>& softmax, const AttentionShape& shape, const ScoreBlock& block,
                           const DropoutFactor<Wide<T>>& factor, int64_t index, const Team& team) {
  using W = Wide<T>;
  const ScoreRow row(shape, block, index);
  const W* const scores = softmax.scores + index * block.stride;
  const int first = row.begin / kQuad * kQuad, lane = team.lane * kQuad, step = team.lanes * kQuad;
  W largest = kNoScore<W>, sum = 0;
  for (int column = first + lane; column < row.end; column += step) {
    const ScoreQuad<W> quad = score_quad(shape, block, row, scores, column);
    W most = largest;
    for (const W x : quad.x.values) most = x > most ? x : most;
    const W base = most == kNoScore<W> ? W(0) : most;
    if (most > largest) sum *= largest == kNoScore<W> ? W(0) : team.exp(largest - base);
    for (int c = 0; c < kQuad; ++c) sum += quad.seen[c] ? team.exp(quad.x.values[c] - base) : W(0);
    largest = most;
  }
  const W most = team.largest(largest), base = most == kNoScore<W> ? W(0) : most;
  const W total = team.sum(largest == kNoScore<W> ? sum : sum * team.exp(largest - base));
  const W share = total == W(0) ? W(0) : W(1) / total;
  if (team.lane == 0) softmax.logsumexp[row.head * shape.queries + row.query] = most + std::log(total);
  const DropoutRow draw = make_dropout_row(shape, row);
  T* const probabilities = softmax.probabilities + index * block.stride;
  for (int column = lane; column < static_cast<int>(block.keys); column += step) {
    Quad<T> to{};
    if (column >= first && column < row.end) {
      const ScoreQuad<W> quad = score_quad(shape, block, row, scores, column);
      const Quad<W> kept = dropout_factors(shape, block, factor, draw, column, quad);
      for (int c = 0; c < kQuad; ++c) {
        const W p = quad.seen[c] ? team.exp(quad.x.values[c] - base) * share : W(0);
        to.values[c] = store<T>(p * kept.values[c]);
      }
    }
    store_quad(to, probabilities, column, whole_quad());
  }
}

template <class T, class Team>
constexpr void softmax_backward_row(const AttentionSoftmaxBackward<T>& backward, const AttentionShape& shape,
                                    const ScoreBlock& block, const DropoutFactor<Wide<T>>& factor, int64_t index,
                                    const Team& team) {
  using W = Wide<T>;
  const ScoreRow row(shape, block, index);
  const int64_t head = row.head - row.sample * shape.heads;
  const T *const out = backward.out.at(row.sample, head, row.query), *const dout = backward.dout.at(row.sample, head,
                                                                                                    row.query);
  W dot = 0;
  for (int i = team.lane; i < static_cast<int>(shape.v_head_dim); i += team.lanes)
    dot += load(out[i]) * load(dout[i]);
  const W delta = team.sum(dot), logsumexp = backward.logsumexp[row.head * shape.queries + row.query],
          scale = static_cast<W>(shape.softmax_scale);
  const DropoutRow draw = make_dropout_row(shape, row);
  const int first = row.begin / kQuad * kQuad;
  for (int column = team.lane * kQuad; column < static_cast<int>(block.keys); column += team.lanes * kQuad) {
    Quad<T> probabilities{}, dscores{};
    if (column >= first && column < row.end) {
      const ScoreQuad<W> quad = score_quad(shape, block, row, backward.scores + index * block.stride, column);
      const Quad<W> dx = load_quad(backward.dprobabilities + index * block.stride, column, whole_quad()),
                    kept = dropout_factors(shape, block, factor, draw, column, quad);
      for (int c = 0; c < kQuad; ++c) {
        if (!quad.seen[c]) continue;
        const W score = quad.x.values[c], p = score == kNoScore<W> ? W(0) : team.exp(score - logsumexp);
        probabilities.values[c] = store<T>(p * kept.values[c]);
        dscores.values[c] = store<T>((kept.values[c] * dx.values[c] - delta) * p * scale * cap_slope(shape, score));
      }
    }
    store_quad(probabilities, backward.probabilities + index * block.stride, column, whole_quad());
    store_quad(dscores, backward.dscores + index * block.stride, column, whole_quad());
  }
}

}  // namespace metroplex::kernels
