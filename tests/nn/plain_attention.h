// Core attention by its formula in float64 with full score matrices and autograd: the reference implementation for
// the blocked and fused ones.
#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "base/philox.h"
#include "nn/blocked_attention.h"
#include "nn/core_attention.h"
#include "nn/tools.h"

namespace metroplex::test {

// For `in`, with the usual scale; dropout of layer 0 with seed 1.
inline nn::CoreSpec core_spec(const nn::CoreInputs& in, double dropout = 0, int64_t first_head = 0) {
  const int64_t d = in.q.size(3);
  return {in.q.size(2),
          in.k.size(2),
          d,
          in.v.size(3),
          1 / std::sqrt(static_cast<double>(d)),
          {1, 0, nn::RandomSite::attention_probabilities, dropout, {}},
          first_head,
          {}};
}

// [n] int64.
inline at::Tensor get_positions(const nn::Positions& rows, int64_t n) {
  return rows.rows.defined() ? rows.rows : at::arange(rows.first, rows.first + n, at::kLong);
}

// [b, 1, s_q, s_k] bool, true = hidden.
inline at::Tensor hidden_pairs(const nn::CoreInputs& in, const nn::CoreCall& call) {
  const at::Tensor& documents = call.batch.documents.ids;
  const at::Tensor queries = get_positions(call.positions.queries, in.q.size(0)),
                   keys = get_positions(call.positions.keys, in.k.size(0));
  at::Tensor pairs = keys.unsqueeze(0).gt(queries.unsqueeze(1));
  if (call.spec.window >= 0)
    pairs = pairs.logical_or(queries.unsqueeze(1).sub(keys.unsqueeze(0)).gt(call.spec.window));
  if (call.spec.chunk > 0) {
    const at::Tensor own = queries.div(call.spec.chunk, "floor"), other = keys.div(call.spec.chunk, "floor");
    pairs = pairs.logical_or(own.unsqueeze(1).ne(other.unsqueeze(0)));
  }
  at::Tensor hidden = pairs.expand({in.q.size(1), 1, -1, -1});
  if (!documents.defined()) return hidden;
  const at::Tensor of_queries = documents.index_select(1, queries), of_keys = documents.index_select(1, keys);
  return hidden.logical_or(of_queries.unsqueeze(2).ne(of_keys.unsqueeze(1)).unsqueeze(1));
}

// [b, n, s_q, s_k]: 0 or 1 / (1 - p), element by element.
inline at::Tensor dropout_factors(const nn::CoreInputs& in, const nn::CoreCall& call) {
  const auto& [spec, positions, batch] = call;
  const int64_t b = in.q.size(1), heads = in.q.size(2), queries = in.q.size(0), keys = in.k.size(0);
  at::Tensor factors = at::ones({b, heads, queries, keys}, at::kDouble);
  if (!spec.dropout.active(batch)) return factors;
  const bool of_query = positions.queries.rows.defined(), of_key = positions.keys.rows.defined();
  const int64_t width = of_key ? positions.keys.whole : keys, rows = of_query ? positions.queries.whole : queries;
  const uint64_t key = nn::random_key(spec.dropout.seed, spec.dropout.layer, spec.dropout.site);
  const auto threshold = static_cast<uint32_t>(spec.dropout.probability * 16777216.0);
  auto out = factors.accessor<double, 4>();
  for (int64_t sample = 0; sample < b; ++sample) {
    const auto counter = static_cast<uint64_t>(batch.counters.samples.const_data_ptr<int64_t>()[sample]);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t row =
            (spec.first_head + h) * rows + (of_query ? positions.queries.rows.const_data_ptr<int64_t>()[i] : i);
        for (int64_t j = 0; j < keys; ++j) {
          const int64_t at = row * width + (of_key ? positions.keys.rows.const_data_ptr<int64_t>()[j] : j);
          const auto bits = base::philox4x32(key, static_cast<uint64_t>(at / 4), counter);
          const bool dropped = (bits[static_cast<size_t>(at % 4)] >> 8) < threshold;
          out[sample][h][i][j] = dropped ? 0 : 1 / (1 - spec.dropout.probability);
        }
      }
    }
  }
  return factors;
}

struct AttentionResult {
  at::Tensor out, dq, dk, dv, dsinks = {};
};

// dy [s_q, b, n, dv]; all results are float64. `sinks` [n] may be undefined; its gradient is `dsinks`.
inline AttentionResult plain_attention(const nn::CoreInputs& in, const nn::CoreCall& call, const at::Tensor& dy,
                                       const at::Tensor& sinks = {}) {
  const auto leaf = [](const at::Tensor& x) { return x.detach().to(at::kDouble).clone().requires_grad_(true); };
  const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const int64_t repeat = in.q.size(2) / in.k.size(2);
  const auto heads_first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
  const at::Tensor hidden = hidden_pairs(in, call);
  at::Tensor scores = at::matmul(heads_first(q), heads_first(k.repeat_interleave(repeat, 2)).transpose(2, 3)) *
                      call.spec.softmax_scale;
  if (call.spec.softcap > 0) scores = (scores / call.spec.softcap).tanh() * call.spec.softcap;
  const bool beside = call.spec.softmax != config::SoftmaxType::vanilla;
  const at::Tensor sink = sinks.defined() ? leaf(sinks) : at::zeros({in.q.size(2)}, at::kDouble);
  scores = scores.masked_fill(hidden, -1e300);
  if (beside) scores = at::cat({scores, sink.view({1, -1, 1, 1}).expand({in.q.size(1), -1, in.q.size(0), 1})}, -1);
  const at::Tensor p = at::softmax(scores, -1).narrow(-1, 0, in.k.size(0)) * hidden.all(-1, true).logical_not();
  const at::Tensor dropped = p * dropout_factors(in, call);
  const at::Tensor out = at::matmul(dropped, heads_first(v.repeat_interleave(repeat, 2))).permute({2, 0, 1, 3});
  std::vector<at::Tensor> inputs{q, k, v};
  if (sinks.defined()) inputs.push_back(sink);
  const auto d = torch::autograd::grad({out}, inputs, {dy.to(at::kDouble)});
  return {out.detach(), d[0], d[1], d[2], sinks.defined() ? d[3] : at::Tensor()};
}

// The same by a CoreAttention, in the type of `in`.
inline AttentionResult run_attention(const nn::CoreInputs& in, const nn::CoreCall& call, const at::Tensor& dy) {
  const nn::CoreAttention core(call.spec, {});
  nn::CoreSaved saved;
  const at::Tensor out = core.forward(in.q, in.k, in.v, call.positions, call.batch, &saved).x;
  const nn::CoreInputs gradients = core.backward(dy.flatten(2), saved);
  return {out.view(dy.sizes()), gradients.q, gradients.k, gradients.v};
}

// The error is at most `tolerance` times the largest value, or times 1 if gradients cancel.
inline void expect_attended(const AttentionResult& got, const AttentionResult& wanted, double tolerance) {
  const auto near = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
    EXPECT_EQ(a.sizes(), b.sizes()) << what;
    EXPECT_LE(largest(a.to(at::kCPU, at::kDouble) - b), tolerance * std::max(1.0, largest(b))) << what;
  };
  near(got.out, wanted.out, "result");
  near(got.dq, wanted.dq, "gradient of q");
  near(got.dk, wanted.dk, "gradient of k");
  near(got.dv, wanted.dv, "gradient of v");
}

}  // namespace metroplex::test
