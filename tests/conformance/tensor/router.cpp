// router.json: the choice of experts, auxiliary losses with gradients, Sinkhorn scaling, capacity and dropping,
// permutation, the step of the expert bias. The values are recorded in fp32; choices and integers must be equal.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "config/experts.h"
#include "conformance/report.h"
#include "conformance/tensor/json_tensor.h"
#include "moe/balance.h"
#include "moe/permutation.h"
#include "moe/routing.h"
#include "moe/dense_routing.h"

namespace metroplex::conformance {
namespace {

// Probabilities and sums of a few dozen numbers of size 1, in units of 2^-24.
constexpr double kRounding = 2e-6;

at::Tensor floats(const Json& json) { return to_tensor(json, at::kFloat); }
at::Tensor integers(const Json& json) { return to_tensor(json, at::kLong); }
at::Tensor to_routing_map(const Json& json) { return to_tensor(json, at::kBool); }

config::ScoreFunction score_function(const Json& json) {
  return config::Choice<config::ScoreFunction>(json.get<std::string>());
}

std::string first_problem(std::initializer_list<std::string> problems) {
  for (const std::string& problem : problems) {
    if (!problem.empty()) return problem;
  }
  return "";
}

// [T, k] from a map [T, E], k the maximum over the tokens; -1 if a token has fewer.
at::Tensor select_experts(const at::Tensor& map) {
  const int64_t k = std::max<int64_t>(1, map.sum(1).max().item<int64_t>());
  at::Tensor experts = at::full({map.size(0), k}, -1, at::kLong);
  for (int64_t t = 0; t < map.size(0); ++t) {
    int64_t n = 0;
    for (int64_t e = 0; e < map.size(1); ++e) {
      if (map[t][e].item<bool>()) experts[t][n++] = e;
    }
  }
  return experts;
}

// The probabilities [T, E] at the chosen experts.
moe::Routing make_routing(const at::Tensor& probs, const at::Tensor& map) {
  const at::Tensor experts = select_experts(map);
  return {experts, probs.gather(1, experts.clamp_min(0)).masked_fill(experts.eq(-1), 0)};
}

std::string routing(const Json& test) {
  const Json& args = test.at("args");
  const auto number = [&](const char* key) {
    return args.contains(key) && !args.at(key).is_null() ? args.at(key).get<double>() : 0.0;
  };
  moe::TopKRule rule;
  rule.k = args.at("topk");
  rule.score_function = score_function(args.at("score_function"));
  rule.pre_softmax = args.value("use_pre_softmax", false);
  if (number("group_topk") > 0) {
    rule.num_groups = static_cast<int64_t>(number("num_groups"));
    rule.group_topk = static_cast<int64_t>(number("group_topk"));
  }
  rule.scaling_factor = number("scaling_factor");
  const Json bias = args.value("expert_bias", Json());
  const at::Tensor logits = floats(test.at("logits"));
  const moe::Routing got = moe::route({}, logits, rule, {bias.is_null() ? at::Tensor() : floats(bias), {}});
  const int64_t experts = logits.size(1);
  return first_problem({compare_tensors("routing_map", moe::dense_map(got.experts, experts),
                                        to_routing_map(test.at("routing_map")), 0),
                        compare_tensors("top_indices", std::get<0>(got.experts.sort(-1)),
                                        std::get<0>(integers(test.at("top_indices")).sort(-1)), 0),
                        compare_tensors("probs", moe::dense_probs(got, experts), floats(test.at("probs")),
                                        kRounding * std::max(1.0, rule.scaling_factor)),
                        compare_tensors("tokens_per_expert", moe::tokens_per_expert(got.experts, experts),
                                        integers(test.at("tokens_per_expert")), 0)});
}

std::string group_limited(const Json& test) {
  moe::TopKRule rule;
  rule.k = test.at("topk");
  rule.num_groups = test.at("num_groups");
  rule.group_topk = test.at("group_topk");
  const at::Tensor scores = floats(test.at("scores")), got = moe::choose(scores, rule);
  return first_problem({compare_tensors("indices", got, integers(test.at("indices")), 0),
                        compare_tensors("probs", scores.gather(1, got), floats(test.at("probs")), 0)});
}

// The value of the only term and its gradient: with a loss mask of one token a term is the loss itself.
struct AuxLoss {
  at::Tensor loss, gradient;
};
AuxLoss aux_loss(const config::Model& model, const at::Tensor& logits, int64_t samples) {
  const at::AutoGradMode with_grad(true);
  moe::AuxiliaryLosses losses(model, {}, {});
  nn::Microbatch batch;
  batch.loss_mask = at::ones({1, 1});
  nn::SegmentContext context{batch, false, {}};
  const at::Tensor x = logits.clone().requires_grad_(true);
  losses.add_terms(x, {}, samples, context);
  MPX_CHECK(context.terms.size() == 1, "conformance", "one loss is requested, ", context.terms.size(), " came");
  const at::Tensor loss = context.terms.front().sum;
  return {loss.detach(), torch::autograd::grad({loss}, {x})[0]};
}

config::Model make_model(const Json& test, const at::Tensor& logits, const char* type) {
  config::Model model;
  model.num_moe_experts = logits.size(-1);
  model.moe_router_topk = test.at("topk");
  model.moe_router_load_balancing_type = type;
  model.moe_aux_loss_coeff = test.at("coeff").dump();
  return model;
}

std::string aux(const Json& test) {
  const at::Tensor logits = floats(test.at("logits"));
  const int64_t experts = logits.size(1), k = test.at("topk"), tokens = test.at("total_num_tokens");
  config::Model model = make_model(test, logits, "aux_loss");
  model.moe_router_score_function = score_function(test.at("score_function"));
  // Every token is its own sample.
  const kernels::BalanceShape shape{logits.size(0), experts, logits.size(0),
                                    moe::balance_score(model.moe_router_score_function)};
  const at::Tensor sums = moe::balance_sums({}, logits, shape);
  const at::Tensor scores = sums.narrow(0, shape.bins(), logits.numel()).view(logits.sizes());
  const at::Tensor best = moe::choose(scores, {.k = k});
  const AuxLoss got = aux_loss(model, logits, 1);
  // Over the tokens of several ranks the factor includes all ranks, the scores only this rank's.
  const double coeff = test.at("coeff"), recorded = test.at("loss");
  const double share = moe::balance_factor(coeff, experts, k, static_cast<double>(tokens)) /
                       moe::balance_factor(coeff, experts, k, static_cast<double>(logits.size(0)));
  return first_problem(
      {compare_tensors("scores", scores, floats(test.at("scores")), kRounding),
       compare_tensors("routing_map", moe::dense_map(best, experts), to_routing_map(test.at("routing_map")), 0),
       compare_tensors("tokens_per_expert", moe::tokens_per_expert(best, experts),
                       integers(test.at("tokens_per_expert")), 0),
       compare_near(got.loss.item<double>() * share, recorded, 0, kRounding),
       compare_tensors("grad_logits", got.gradient * share, floats(test.at("grad_logits")), kRounding * coeff)});
}

std::string seq_aux(const Json& test) {
  const at::Tensor logits = floats(test.at("logits"));
  const int64_t experts = logits.size(1), samples = logits.size(0) / test.at("seq").get<int64_t>();
  const at::Tensor best = moe::choose(logits, {.k = test.at("topk")});
  const at::Tensor counts = moe::tokens_per_expert(best, experts, samples).reshape({-1});
  const double loss = aux_loss(make_model(test, logits, "seq_aux_loss"), logits, samples).loss.item<double>();
  return first_problem({compare_tensors("tokens_per_expert", counts, integers(test.at("tokens_per_expert")), 0),
                        compare_near(loss, test.at("loss"), 0, kRounding)});
}

std::string z_loss(const Json& test) {
  const at::Tensor logits = floats(test.at("logits"));
  const double coeff = test.at("coeff"), recorded = test.at("loss");
  const Json& padding = test.at("padding_mask_true_is_pad");
  if (!padding.is_null()) {
    // None of our tokens is padding: the mean is over the tokens that are not padding.
    const at::Tensor valid = logits.index({to_tensor(padding, at::kBool).eq(false)});
    const kernels::BalanceShape shape{valid.size(0), valid.size(1), 1, kernels::BalanceScore::none, true};
    const double sum = moe::balance_sums({}, valid, shape)[2 * shape.bins()].item<double>();
    return compare_near(sum / std::max<double>(1, static_cast<double>(valid.size(0))) * coeff, recorded, 0,
                        kRounding);
  }
  config::Model model;
  model.num_moe_experts = logits.size(1);
  model.moe_z_loss_coeff = coeff;
  const AuxLoss got = aux_loss(model, logits, 1);
  const std::string problem = compare_near(got.loss.item<double>(), recorded, 0, kRounding);
  if (!problem.empty() || !test.contains("grad")) return problem;
  return compare_tensors("grad", got.gradient, floats(test.at("grad")), 4 * kRounding * coeff);
}

std::string sinkhorn(const Json& test) {
  const at::Tensor got = moe::sinkhorn({}, floats(test.at("logits")), test.at("tol"));
  return first_problem({compare_tensors("norm_logits", got, floats(test.at("norm_logits")), kRounding),
                        compare_tensors("top1", moe::choose(got, {.k = 1}), integers(test.at("top1")), 0),
                        compare_tensors("top2", moe::choose(got, {.k = 2}), integers(test.at("top2")), 0)});
}

std::string capacity(const Json& test) {
  config::Model model;
  model.num_moe_experts = test.at("num_experts");
  model.moe_router_topk = 1;
  model.moe_expert_capacity_factor = test.at("capacity_factor");
  return compare(config::expert_capacity(model, test.at("num_tokens")), test.at("capacity"));
}

// Upstream's choice is arbitrary where the recorded map is undefined: padding to the capacity with unchosen tokens of
// probability 0, or, by position, which of too many. Then only the number of tokens per expert is compared.
std::string dropping(const Json& test) {
  const at::Tensor probs = floats(test.at("probs")), map = to_routing_map(test.at("routing_map")),
                   final_probs = floats(test.at("final_probs"));
  config::Model model;
  model.num_moe_experts = map.size(1);
  model.moe_router_topk = test.at("topk");
  model.moe_expert_capacity_factor = test.at("capacity_factor");
  const int64_t limit = config::expert_capacity(model, map.size(0));
  const std::string wrong_capacity = compare(limit, test.at("capacity"));
  if (!wrong_capacity.empty()) return "capacity: " + wrong_capacity;
  const config::DropPolicy policy = config::Choice<config::DropPolicy>(test.at("policy").get<std::string>());
  const moe::Routing kept = moe::drop(make_routing(probs, map), map.size(1), limit, policy);
  const at::Tensor got = moe::dense_map(kept.experts, map.size(1));
  const std::string wrong_probs = compare_tensors("probs", moe::dense_probs(kept, map.size(1)), probs * got, 0);
  if (!wrong_probs.empty()) return wrong_probs;
  const at::Tensor recorded = to_routing_map(test.at("final_map")).logical_and(map);
  if (test.at("final_map_defined").get<bool>() || policy == config::DropPolicy::probs) {
    return first_problem({compare_tensors("final_map", got, recorded, 0),
                          compare_tensors("final_probs", moe::dense_probs(kept, map.size(1)), final_probs, 0)});
  }
  return compare_tensors("tokens kept of each expert", got.sum(0), map.sum(0).clamp_max(limit), 0);
}

std::string permute(const Json& test) {
  const at::Tensor tokens = floats(test.at("tokens")), map = to_routing_map(test.at("routing_map"));
  const moe::Routing routing = make_routing(floats(test.at("probs")), map);
  const int64_t rows = map.sum().item<int64_t>();
  if (rows != test.at("num_out_tokens")) return base::concat("num_out_tokens is not the ", rows, " of the map");
  const moe::Permutation p = moe::permutation({}, routing.experts, {.num_experts = map.size(1), .num_rows = rows});
  const auto [x, probs] = moe::permute({}, tokens, routing.probs, p);
  return first_problem(
      {compare_tensors("sorted_indices", p.source.div(p.divisor, "floor"), integers(test.at("sorted_indices")), 0),
       compare_tensors("permuted", x, floats(test.at("permuted")), 0),
       compare_tensors("permuted_probs", probs, floats(test.at("permuted_probs")), 0),
       compare_tensors("unpermuted_no_probs", moe::unpermute({}, x, p), floats(test.at("unpermuted_no_probs")), 0),
       compare_tensors("unpermuted_with_probs", moe::unpermute({}, x * probs.unsqueeze(1), p),
                       floats(test.at("unpermuted_with_probs")),
                       kRounding * std::max(1.0, tokens.max().item<double>()))});
}

// Upstream pads with rows of tokens that were not sent there, of probability 0; our padding rows belong to no token.
// The probabilities are not recorded: those of a token's rows add up to the ratio of output and input.
std::string permute_drop_and_pad(const Json& test) {
  const at::Tensor tokens = floats(test.at("tokens")), map = to_routing_map(test.at("routing_map"));
  const int64_t limit = test.at("capacity"), experts = map.size(1), rows = limit * experts;
  const at::Tensor chosen = select_experts(map), back = floats(test.at("unpermuted_with_probs"));
  const moe::Permutation p =
      moe::permutation({}, chosen, {.num_experts = experts, .capacity = limit, .num_rows = rows});
  const at::Tensor real = p.source.ge(0), indices = p.source.div(p.divisor, "floor").masked_select(real);
  const at::Tensor share = back.select(1, 1) / tokens.select(1, 1) / map.sum(1).clamp_min(1);
  const at::Tensor x = moe::permute({}, tokens, {}, p).x;
  const at::Tensor weights = at::zeros({rows}).masked_scatter_(real, share.index_select(0, indices));
  const at::Tensor weighted = at::where(real.unsqueeze(1), x, at::zeros({})) * weights.unsqueeze(1);
  return first_problem(
      {compare_tensors("counts", p.counts, map.sum(0), 0),
       compare_tensors("sorted_indices", indices, integers(test.at("sorted_indices")).masked_select(real), 0),
       compare_tensors("permuted", x.index({real}), floats(test.at("permuted")).index({real}), 0),
       compare_tensors("unpermuted_with_probs", moe::unpermute({}, weighted, p), back,
                       kRounding * tokens.max().item<double>())});
}

// Moving rows with their chunk equals sorting rows by the chunk's new position.
std::string sort_chunks(const Json& test) {
  const at::Tensor sizes = integers(test.at("split_sizes")), order = integers(test.at("sorted_idxs"));
  const int64_t rows = sizes.sum().item<int64_t>(), chunks = sizes.numel();
  const at::Tensor place = at::empty_like(order).scatter_(0, order, at::arange(chunks));
  const at::Tensor experts = place.repeat_interleave(sizes).unsqueeze(1);
  const moe::Permutation p = moe::permutation({}, experts, {.num_experts = chunks, .num_rows = rows});
  const at::Tensor got = moe::permute({}, at::arange(rows).to(at::kFloat).unsqueeze(1), {}, p).x.squeeze(1);
  return compare_tensors("output", got, floats(test.at("output")), 0);
}

std::string pad_routing_map(const Json& test) {
  const at::Tensor got = moe::padded_map(to_routing_map(test.at("routing_map")), test.at("pad_multiple"));
  return first_problem({compare_tensors("output", got, to_routing_map(test.at("output")), 0),
                        compare_tensors("counts", got.sum(0), integers(test.at("counts")), 0)});
}

std::string expert_bias_update(const Json& test) {
  const at::Tensor bias = floats(test.at("expert_bias"));
  moe::move_expert_bias(bias, integers(test.at("tokens_per_expert")), test.at("rate"));
  return compare_tensors("updated", bias, floats(test.at("updated")), 0);
}

}  // namespace

void run_router(const Json& file, Report& report) {
  const auto each = [&](const char* key, std::string (*body)(const Json&)) {
    int number = 0;
    for (const Json& test : cases(file, key))
      report.check(std::string(key) + " " + std::to_string(number++), test, [&] { return body(test); });
  };
  const auto one = [&](const char* key, std::string (*body)(const Json&)) {
    const Json test = file.value(key, Json::object());
    if (!test.empty()) report.check(key, test, [&] { return body(test); });
  };
  each("routing", routing);
  each("group_limited", group_limited);
  each("aux", aux);
  one("seq_aux", seq_aux);
  each("z_loss", z_loss);
  each("sinkhorn", sinkhorn);
  each("dropping", dropping);
  each("permute", permute);
  one("permute_drop_and_pad", permute_drop_and_pad);
  each("sort_chunks", sort_chunks);
  each("pad_routing_map", pad_routing_map);
  each("expert_bias_update", expert_bias_update);
  for (const Json& test : cases(file, "capacity")) {
    const std::string name = "capacity of " + test.dump();
    if (test.at("min_capacity").is_null()) report.check(name, test, [&] { return capacity(test); });
    else report.wait(name, "a minimum capacity, for which there is no key");
  }
  for (const Json& test : cases(file, "qb_dual_update"))
    report.wait("qb_dual_update " + test.dump().substr(0, 60), "quantile balancing");
}

}  // namespace metroplex::conformance
