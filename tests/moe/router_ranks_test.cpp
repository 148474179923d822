// Routers on several ranks against one rank with all tokens, in float64: routing, losses, gradients, bias; random
// numbers match bit for bit.
#include "moe/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "moe/router_tools.h"
#include "support/run_ranks.h"

namespace metroplex::test::router_ranks_test {
namespace {

constexpr int64_t kRows = 16, kSamples = 2, kExperts = 8, kHidden = 12;
constexpr double kFactor = 0.37;

// Sums over up to 32 rows in another order, and products of 12 numbers.
constexpr double kRounding = 1e-13;

config::Model full_model() {
  config::Model model = router_model(kExperts, 2, kHidden);
  model.moe_router_score_function = config::ScoreFunction::sigmoid;
  model.moe_router_enable_expert_bias = true;
  model.add_bias_linear = true;
  model.moe_router_load_balancing_type = "aux_loss,seq_aux_loss,global_aux_loss";
  model.moe_aux_loss_coeff = "0.7,0.5,0.3";
  model.moe_z_loss_coeff = 0.2;
  return model;
}

at::Tensor input(int64_t microbatch) {
  return sample({kRows, kSamples, kHidden}, static_cast<uint64_t>(microbatch + 1));
}
at::Tensor weights(int64_t microbatch) {
  return sample({kRows, kSamples, kExperts}, static_cast<uint64_t>(microbatch + 50));
}

// Computes this rank's rows of microbatch `number`.
struct Part {
  at::Tensor rows;  // of the whole sequence, in this rank's order
  RouterRun run;
};

// The rows of a cp rank, the first and the last of 2 cp parts; undefined for cp 1.
at::Tensor cp_rows(const comm::Group& cp) {
  if (cp.size() == 1) return {};
  const int64_t part = kRows / (2 * cp.size());
  return at::cat({at::arange(part) + cp.index() * part, at::arange(part) + (2 * cp.size() - 1 - cp.index()) * part});
}

struct Rank {
  Rank(const comm::World& world, const config::Model& model, bool per_token)
      : layer(context(world)), router(model, layer, experts(world, per_token)) {}

  static nn::LayerContext context(const comm::World& world) {
    nn::LayerContext layer = layer_context(world.groups().tp, true);
    layer.cp = world.groups().cp;
    return layer;
  }
  static moe::ExpertContext experts(const comm::World& world, bool per_token) {
    config::Config config;
    config.train.calculate_per_token_loss = per_token;
    return moe::expert_context(world, config);
  }

  Part run(const comm::World& world, int64_t number, double factor, bool again = false) {
    const at::Tensor of_cp = cp_rows(world.groups().cp), all = of_cp.defined() ? of_cp : at::arange(kRows);
    Part part;
    nn::RecomputeMemo memo;
    part.rows = comm::select_shard(all, 0, layer.sp).contiguous();
    const nn::Microbatch batch = microbatch(kRows, kSamples, kSamples * number, 6, of_cp);
    part.run = router.run(input(number).index_select(0, part.rows), batch, weights(number).index_select(0, part.rows),
                          factor, again ? &memo : nullptr);
    return part;
  }

  nn::LayerContext layer;
  TestRouter router;
};

at::Tensor by_rows(const at::Tensor& x) { return x.view({-1, kSamples, x.size(-1)}); }
at::Tensor summed(const at::Tensor& x, const comm::Group& group) {
  at::Tensor sum = x.clone();
  comm::all_reduce(sum, group);
  return sum;
}

// Two microbatches per data-parallel rank; one rank runs all of them in the same order.
void expect_one_rank(int num_ranks, const Layout& layout, bool per_token) {
  SCOPED_TRACE(base::concat("tp ", layout.tp, " cp ", layout.cp, " dp ", layout.dp, " per token ", per_token));
  run_ranks(num_ranks, layout, [&](const comm::World& world) {
    const comm::Group &tp = world.groups().tp, &cp = world.groups().cp, &dp = world.groups().dp;
    config::Model model = full_model();
    // The counts of the global loss include all microbatches that run at the same time.
    if (dp.size() > 1) model.moe_router_load_balancing_type = "aux_loss,seq_aux_loss,none";
    Rank mine(world, model, per_token);
    moe::ExpertContext alone;
    alone.per_token_loss = per_token;
    TestRouter one(model, layer_context(), alone);
    for (int64_t turn = 0; turn < 2; ++turn) {
      for (int64_t i = 0; i < dp.size(); ++i) {
        const int64_t number = dp.size() * turn + i;
        const RouterRun wanted =
            one.run(input(number), microbatch(kRows, kSamples, kSamples * number, 6), weights(number), kFactor);
        if (i != dp.index()) continue;
        const Part got = mine.run(world, number, kFactor);
        EXPECT_TRUE(by_rows(got.run.map).equal(by_rows(wanted.map).index_select(0, got.rows)));
        EXPECT_LE(largest(by_rows(got.run.probs) - by_rows(wanted.probs).index_select(0, got.rows)), kRounding);
        EXPECT_LE(relative_difference(got.run.dx, wanted.dx.index_select(0, got.rows)), kRounding);
        ASSERT_EQ(got.run.terms.size(), wanted.terms.size());
        for (const auto& [name, term] : wanted.terms) {
          // The step uses the first tp rank's terms and sums those of cp.
          EXPECT_LE(relative_difference(summed(got.run.terms.at(name), cp), term), kRounding) << name;
        }
      }
    }
    for (size_t i = 0; i < one.params.size(); ++i) {
      const nn::Param& param = *mine.router.params[i];
      EXPECT_EQ(param.placement.partial, mine.layer.sp_axes);
      const at::Tensor gradient = summed(summed(summed(param.main_grad, tp), cp), dp);
      EXPECT_LE(relative_difference(gradient, one.params[i]->main_grad), kRounding) << param.name;
    }
    nn::Buffer &bias = *mine.router.buffers.at(0), &wanted = *one.buffers.at(0);
    bias.apply(bias);
    wanted.apply(wanted);
    EXPECT_TRUE(bias.pending.equal(wanted.pending)) << "the counts of all ranks";
    EXPECT_TRUE(bias.data.equal(wanted.data));
    EXPECT_TRUE(bias.data.ne(0).any().item<bool>());
  });
}

TEST(RouterRanks, EveryLayoutRoutesAndLearnsAsOneRank) {
  for (const bool per_token : {false, true}) {
    expect_one_rank(1, {}, per_token);
    expect_one_rank(2, {.tp = 2}, per_token);
    expect_one_rank(4, {.tp = 4}, per_token);
    expect_one_rank(2, {.cp = 2}, per_token);
    expect_one_rank(4, {.tp = 2, .cp = 2}, per_token);
    expect_one_rank(2, {.dp = 2}, per_token);
    expect_one_rank(8, {.tp = 2, .dp = 2, .cp = 2}, per_token);
  }
}

// Every rank has the full value of the loss, and the gradient of its own tokens.
TEST(RouterRanks, TheGlobalLossIsOverTheTokensOfAllRanks) {
  run_ranks(4, {.tp = 2, .dp = 2}, [](const comm::World& world) {
    config::Model model = full_model();
    model.moe_router_load_balancing_type = "global_aux_loss";
    model.moe_aux_loss_coeff = "0.3";
    model.moe_z_loss_coeff = 0;
    const moe::TopKRule rule = moe::topk_rule(model);
    const comm::Group &tp = world.groups().tp, &dp = world.groups().dp;
    Rank mine(world, model, false);
    const at::Tensor w = mine.router.params[0]->data, bias = mine.router.params[1]->data;
    at::Tensor counts = at::zeros({kExperts}, at::kDouble);
    for (int64_t turn = 0; turn < 3; ++turn) {
      const at::Tensor x =
          at::cat({input(2 * turn), input(2 * turn + 1)}, 1).view({-1, kHidden}).requires_grad_(true);
      const at::Tensor logits = at::matmul(x, w.t()) + bias;
      counts = counts + plain_map(logits, rule).sum(0);
      const at::Tensor wanted = plain_balance(logits, rule, 0.3, counts / static_cast<double>(turn + 1));
      const double tokens = microbatch(kRows, kSamples, kSamples * (2 * turn + dp.index())).mask_sum;
      const at::Tensor dx = torch::autograd::grad({wanted}, {x})[0].view({kRows, 2 * kSamples, kHidden});
      const at::Tensor rows = comm::select_shard(at::arange(kRows), 0, tp);
      // Without the gradient of the probabilities.
      const nn::Microbatch batch = microbatch(kRows, kSamples, kSamples * (2 * turn + dp.index()), 6);
      const RouterRun got = mine.router.run(input(2 * turn + dp.index()).index_select(0, rows), batch,
                                            at::zeros({rows.numel(), kSamples, kExperts}, at::kDouble), 1);
      EXPECT_LE(relative_difference(got.terms.at("global_load_balancing_loss") / tokens, wanted), kRounding);
      const at::Tensor own = dx.narrow(1, dp.index() * kSamples, kSamples).index_select(0, rows);
      // The sum over dp; its mean is Megatron-LM's value.
      EXPECT_LE(relative_difference(got.dx / tokens, own), kRounding);
    }
  });
}

TEST(RouterRanks, WhatIsDrawnIsEqualInEveryLayoutAndWhenRepeated) {
  for (const double skew : {-1.0, 0.0, 1.2}) {  // -1: jitter
    config::Model model = router_model(kExperts, 2, kHidden);
    if (skew < 0) model.moe_input_jitter_eps = 0.3;
    if (skew == 0) model.moe_router_force_load_balancing = true;
    if (skew > 0) model.moe_router_force_skew = skew;
    TestRouter one(model, layer_context());
    const RouterRun wanted = one.run(input(1), microbatch(kRows, kSamples, kSamples, 6), weights(1));
    for (const Layout& layout : {Layout{.tp = 2}, {.tp = 4}, {.cp = 2}, {.tp = 2, .cp = 2}}) {
      run_ranks(layout.tp * layout.cp, layout, [&](const comm::World& world) {
        Rank mine(world, model, false);
        const Part got = mine.run(world, 1, 1), again = mine.run(world, 1, 1, true);
        EXPECT_TRUE(by_rows(got.run.map).equal(by_rows(wanted.map).index_select(0, got.rows)));
        EXPECT_LE(largest(by_rows(got.run.probs) - by_rows(wanted.probs).index_select(0, got.rows)),
                  skew < 0 ? kRounding : 0);
        EXPECT_TRUE(again.run.probs.equal(got.run.probs));
        EXPECT_TRUE(again.run.dx.equal(got.run.dx));
      });
    }
  }
}

}  // namespace
}  // namespace metroplex::test::router_ranks_test
