// Attention of selected rows in half types, as on context-parallel ranks, against the formula: cases for a GPU and
// for its fakes, with the allowed rounding error.
#pragma once

#include <string>
#include <vector>

#include "nn/plain_attention.h"

namespace metroplex::test {

// Ranges in any order, with windows that reach into the previous range and beyond it. Some documents end within a
// range, and some cases have windows within documents.
struct ChosenRows {
  nn::CorePositions positions;
  int64_t v_dim = 64, window = -1;
  nn::Microbatch batch = {};
};

// Calls body(name, rows): ranges of `part` rows.
template <class Body>
void for_chosen_rows(int64_t part, const std::vector<int64_t>& v_dims, const Body& body) {
  const auto positions = [&](const std::vector<int64_t>& parts) {
    nn::Positions chosen{0, {}, 4 * part};
    std::vector<at::Tensor> rows;
    for (const int64_t at : parts) {
      chosen.ranges.push_back({at * part, part});
      rows.push_back(at::arange(at * part, (at + 1) * part, at::kLong));
    }
    chosen.rows = at::cat(rows);
    return chosen;
  };
  nn::Microbatch documents;
  const at::Tensor row = at::arange(4 * part);
  documents.documents.ids = at::stack({row.div(part + 7, "floor"), row.div(3 * part, "floor")}).to(at::kLong);
  documents.documents.offsets = nn::document_offsets(documents.documents.ids, 6);
  const nn::Positions first = positions({0, 3}), second = positions({2, 1}), all = positions({0, 3, 1, 2});
  for (const auto& [name, here] :
       std::vector<std::pair<std::string, nn::CorePositions>>{{"ends and ends", {first, first}},
                                                              {"ends and middle", {first, second}},
                                                              {"middle and ends", {second, first}},
                                                              {"middle and all", {second, all}},
                                                              {"ends and all", {first, all}}}) {
    for (const int64_t v_dim : v_dims) body(name + ", values of " + std::to_string(v_dim), ChosenRows{here, v_dim});
    for (const int64_t window : {int64_t{0}, int64_t{20}, part + 20, 3 * part})
      body(name + ", window " + std::to_string(window), ChosenRows{here, 64, window});
    for (const int64_t window : {int64_t{-1}, int64_t{20}, part + 20, 3 * part})
      body(name + ", documents, window " + std::to_string(window), ChosenRows{here, 64, window, documents});
  }
}

// Two samples, four heads in two groups of 64; scores far enough apart that single keys dominate.
struct ChosenOperands {
  nn::CoreInputs in;
  at::Tensor dy;
};
inline ChosenOperands make_operands(const ChosenRows& chosen, at::ScalarType dtype) {
  const auto values = [&](int64_t rows, int64_t heads, int64_t dim, double step) {
    return at::arange(1, rows * 2 * heads * dim + 1, at::kDouble)
        .mul(step)
        .sin()
        .view({rows, 2, heads, dim})
        .to(dtype);
  };
  const int64_t queries = chosen.positions.queries.rows.numel(), keys = chosen.positions.keys.rows.numel();
  return {{values(queries, 4, 64, 0.7).mul(8), values(keys, 2, 64, 0.3), values(keys, 2, chosen.v_dim, 0.9)},
          values(queries, 4, chosen.v_dim, 0.5)};
}

// The formula in float64; rounds probabilities, their gradients, the result and the gradients to `dtype`.
inline AttentionResult rounded_attention(const nn::CoreInputs& in, const nn::CoreCall& call, const at::Tensor& dy,
                                         at::ScalarType dtype) {
  const auto rounded = [&](const at::Tensor& x) { return x.to(dtype).to(at::kDouble); };
  const int64_t groups = in.k.size(2), repeat = in.q.size(2) / groups;
  const auto heads_first = [](const at::Tensor& x) { return x.to(at::kDouble).permute({1, 2, 0, 3}); };
  const auto back = [](const at::Tensor& x) { return x.permute({2, 0, 1, 3}); };
  const auto summed = [&](const at::Tensor& x) {
    return back(rounded(rounded(x).unflatten(1, {groups, repeat}).sum(2)));
  };
  const at::Tensor q = heads_first(in.q), k = heads_first(in.k.repeat_interleave(repeat, 2)),
                   v = heads_first(in.v.repeat_interleave(repeat, 2)), dout = heads_first(dy),
                   hidden = hidden_pairs(in, call);
  const at::Tensor scores = (at::matmul(q, k.transpose(2, 3)) * call.spec.softmax_scale).masked_fill(hidden, -1e300);
  const at::Tensor p = at::softmax(scores, -1) * hidden.all(-1, true).logical_not();
  const at::Tensor out = rounded(at::matmul(rounded(p), v));
  const at::Tensor ds = rounded(p * (at::matmul(dout, v.transpose(2, 3)) - (dout * out).sum(-1, true)));
  return {back(out), back(rounded(at::matmul(ds, k) * call.spec.softmax_scale)),
          summed(at::matmul(ds.transpose(2, 3), q) * call.spec.softmax_scale),
          summed(at::matmul(rounded(p).transpose(2, 3), dout))};
}

// Four times the effect of one rounding of each value in the formula: a query is in at most three calls, whose
// results and gradients are rounded one by one and then once more. Adds the fp32 (or float64) error of two sums of 64
// products that cancel. This error counts for as many queries as have probabilities of a key that add up to 8.
inline void expect_rounded_attended(const AttentionResult& got, const ChosenRows& chosen, const nn::CoreCall& call,
                                    at::ScalarType dtype) {
  const auto [in, dy] = make_operands(chosen, dtype);
  const AttentionResult exact = plain_attention(in, call, dy), rounded = rounded_attention(in, call, dy, dtype);
  const double sums = 2 * 64 * 8 * (dtype == at::kDouble ? 0x1p-53 : 0x1p-24);
  const auto near = [&](at::Tensor AttentionResult::*of, const char* what) {
    const double tolerance = 4 * largest(rounded.*of - exact.*of) + sums;
    EXPECT_LE(largest((got.*of).to(at::kCPU, at::kDouble) - exact.*of), tolerance) << what;
  };
  near(&AttentionResult::out, "result");
  near(&AttentionResult::dq, "gradient of q");
  near(&AttentionResult::dk, "gradient of k");
  near(&AttentionResult::dv, "gradient of v");
}

}  // namespace metroplex::test
