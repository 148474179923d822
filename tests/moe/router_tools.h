// A router with all inputs of a forward and backward, and the plain formulas in torch's autograd.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/experts.h"
#include "moe/load_meter.h"
#include "moe/router.h"
#include "nn/tools.h"
#include "moe/dense_routing.h"

namespace metroplex::test {

inline config::Model router_model(int64_t experts, int64_t k, int64_t hidden = 12) {
  config::Model model;
  model.num_moe_experts = experts;
  model.moe_router_topk = k;
  model.hidden_size = hidden;
  model.add_bias_linear = false;
  return model;
}

// Rows `rows` (undefined: all) of a microbatch of `b` samples of `s` tokens; its mask excludes some tokens.
inline nn::Microbatch microbatch(int64_t s, int64_t b, int64_t first_sample = 0, int64_t step = 0,
                                 const at::Tensor& rows = {}) {
  nn::Microbatch batch;
  at::Tensor mask = sample({b, s}, static_cast<uint64_t>(100 + first_sample)).abs().gt(0.25).to(at::kDouble);
  batch.tokens = at::zeros({b, s}, at::kLong);
  batch.mask_sum = mask.sum().item<double>();
  if (rows.defined()) {
    mask = mask.index_select(1, rows);
    batch.tokens = batch.tokens.index_select(1, rows);
    batch.sequence.rows = rows;
    batch.sequence.length = s;
    for (int64_t i = 0; i < rows.numel(); ++i) batch.sequence.row_ranges.push_back({rows[i].item<int64_t>(), 1});
  }
  batch.loss_mask = mask.contiguous();
  nn::set_counters(batch, step, at::arange(b, at::kLong) + first_sample);
  return batch;
}

struct RouterRun {
  moe::Routing routing;
  at::Tensor probs, map;  // dense, [T, E]
  std::map<std::string, at::Tensor> terms;
  at::Tensor dx;  // of sum(probs * weights) + term_factor * sum of terms
};

struct TestRouter {
  TestRouter(const config::Model& of, const nn::LayerContext& layer, const moe::ExpertContext& experts = {},
             int64_t number = 3)
      : model(of), router("router", number, of, layer, experts) {
    router.collect_params(params);
    router.collect_buffers(buffers);
    router.collect_step_counts(counts);
    for (size_t i = 0; i < params.size(); ++i)
      params[i]->data.copy_(sample(params[i]->local_shape, i + 21, at::kDouble).mul(0.8));
    give_main_grad(params);
  }

  RouterRun run(const at::Tensor& x_sbh, const nn::Microbatch& batch, const at::Tensor& weights,
                double term_factor = 1, nn::RecomputeMemo* again = nullptr) {
    const at::AutoGradMode with_grad(true);
    const at::Tensor x = x_sbh.detach().clone().requires_grad_(true);
    nn::SegmentContext context{batch, again != nullptr, {}, again};
    RouterRun out;
    out.routing = router.forward(x, context);
    out.probs = moe::dense_probs(out.routing, model.num_moe_experts);
    out.map = moe::dense_map(out.routing.experts, model.num_moe_experts);
    at::Tensor loss = (out.probs * weights.view(out.probs.sizes())).sum();
    for (const nn::LossTerm& term : context.terms) {
      out.terms[term.name] = term.sum.detach();
      loss = loss + term.sum.to(at::kDouble) * term_factor;
    }
    out.dx = torch::autograd::grad({loss}, {x})[0];
    return out;
  }

  config::Model model;
  moe::Router router;
  std::vector<nn::Param*> params;
  std::vector<nn::Buffer*> buffers;
  std::vector<at::Tensor> counts;  // zeroed by a step
};

inline at::Tensor plain_scores(const at::Tensor& logits, config::ScoreFunction function) {
  using config::ScoreFunction;
  if (function == ScoreFunction::softmax) return logits.exp() / logits.exp().sum(-1, true);
  if (function == ScoreFunction::sigmoid) return 1 / (1 + (-logits).exp());
  return (1 + logits.exp()).log().sqrt();
}

// The k best of a row, by repeated linear search.
inline std::vector<int64_t> plain_best(const std::vector<double>& row, int64_t k) {
  std::vector<int64_t> best;
  for (int64_t n = 0; n < k; ++n) {
    int64_t top = -1;
    for (int64_t i = 0; i < static_cast<int64_t>(row.size()); ++i) {
      const bool taken = std::find(best.begin(), best.end(), i) != best.end();
      if (!taken && (top < 0 || row[static_cast<size_t>(i)] > row[static_cast<size_t>(top)])) top = i;
    }
    best.push_back(top);
  }
  return best;
}

inline std::vector<double> plain_row(const at::Tensor& x, int64_t row) {
  const at::Tensor one = x.detach()[row].to(at::kDouble).contiguous();
  return {one.const_data_ptr<double>(), one.const_data_ptr<double>() + one.numel()};
}

// [T, E] bool: the best k of each row; with groups, only from the best groups.
inline at::Tensor plain_map(const at::Tensor& scores, const moe::TopKRule& rule) {
  at::Tensor map = at::zeros(scores.sizes(), at::kBool);
  const int64_t experts = scores.size(1), groups = std::max<int64_t>(1, rule.num_groups), width = experts / groups;
  const int64_t best_of_group = rule.group_score_topk > 0 ? rule.group_score_topk
                                : rule.group_topk > 0     ? rule.k / rule.group_topk
                                                          : 0;
  for (int64_t t = 0; t < scores.size(0); ++t) {
    std::vector<double> row = plain_row(scores, t), sums;
    for (int64_t g = 0; g < groups && rule.num_groups > 0; ++g) {
      const std::vector<double> members(row.begin() + g * width, row.begin() + (g + 1) * width);
      double sum = 0;
      for (const int64_t i : plain_best(members, best_of_group)) sum += members[static_cast<size_t>(i)];
      sums.push_back(sum);
    }
    if (rule.num_groups > 0) {
      const std::vector<int64_t> kept = plain_best(sums, rule.group_topk);
      for (int64_t e = 0; e < experts; ++e) {
        if (std::find(kept.begin(), kept.end(), e / width) == kept.end())
          row[static_cast<size_t>(e)] = -std::numeric_limits<double>::infinity();
      }
    }
    for (const int64_t e : plain_best(row, rule.k)) map[t][e] = true;
  }
  return map;
}

struct PlainRouting {
  at::Tensor map, probs;  // dense
};
inline PlainRouting plain_route(const at::Tensor& logits, const moe::TopKRule& rule, const at::Tensor& bias = {}) {
  using config::ScoreFunction;
  const bool softmax = rule.score_function == ScoreFunction::softmax;
  const at::Tensor scores = plain_scores(logits, rule.score_function);
  PlainRouting out;
  out.map = plain_map(bias.defined() ? scores + bias : softmax && !rule.pre_softmax ? logits : scores, rule);
  const at::Tensor kept = out.map.to(at::kDouble);
  if (softmax && !rule.pre_softmax) {
    const at::Tensor e = logits.exp() * kept;
    out.probs = e / e.sum(-1, true);
  } else {
    out.probs = scores * kept;
    const bool divides = rule.normalization == config::TopkNormalization::always ||
                         (rule.normalization == config::TopkNormalization::automatic && rule.k > 1);
    if (!softmax && divides) out.probs = out.probs / (out.probs.sum(-1, true) + 1e-20);
  }
  if (rule.scaling_factor > 0) out.probs = out.probs * rule.scaling_factor;
  return out;
}

// coefficient E / (k T^2) sum_e n_e P_e, P_e differentiable in the logits [T, E]; `counts` [E]; undefined: computed
// from the logits.
inline at::Tensor plain_balance(const at::Tensor& logits, const moe::TopKRule& rule, double coefficient,
                                const at::Tensor& counts = {}) {
  at::Tensor scores = plain_scores(logits, rule.score_function);
  scores = scores / scores.sum(-1, true);
  const auto tokens = static_cast<double>(logits.size(0)), experts = static_cast<double>(logits.size(1));
  const at::Tensor n = counts.defined() ? counts : plain_map(scores, {.k = rule.k}).sum(0).to(at::kDouble);
  return (scores.sum(0) * n).sum() * (coefficient * experts / (static_cast<double>(rule.k) * tokens * tokens));
}

inline at::Tensor plain_z_loss(const at::Tensor& logits, double coefficient) {
  return logits.exp().sum(-1).log().square().mean() * coefficient;
}

}  // namespace metroplex::test
