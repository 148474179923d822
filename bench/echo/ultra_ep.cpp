// Compares the model with UltraEP's published results (arXiv:2606.04101; README and report of v1.0.0).
#include <algorithm>
#include <cstdio>

#include "parts.h"

namespace metroplex::bench {
namespace {

const EchoMachine& gb200() { return echo_machines()[echo_machines().size() - 2]; }

struct Gains {
  double layer = 0, whole = 0, slow = 0;  // time ratios
};

// Gains of the MoE part alone, of the whole layer at the same rate, and with other work slowed. The slowed work makes
// the layer reach `ideal_flops` FLOP/s under forced balance (0: unknown).
Gains measure_gains(const Model& model, const EchoTraceForm& form, const Options& options, double ideal_flops) {
  const EchoTrace trace = make_echo_trace(form, {options.ranks, model.experts, model.topk, model.layer.tokens, 1});
  const plan::EchoCounts counts = trace.counts(0, options.slots);
  const EchoCost before = echo_cost(echo_at_owner(counts), model.layer, gb200());
  const EchoCost after = echo_cost(echo_placement(counts, plan_echo(counts, {})), model.layer, gb200());
  const auto even = echo_balanced(options.ranks, model.layer.tokens * model.topk);
  Gains gains{before.moe() / after.moe(), before.total() / after.total(), 0};
  if (ideal_flops > 0) {
    const double flops =
        3 * (model.layer.other_flops + model.expert_flops()) * static_cast<double>(model.layer.tokens);
    const double rest = flops / ideal_flops - echo_cost(even, model.layer, gb200()).moe();
    gains.slow = (rest + before.moe()) / (rest + after.moe());
  }
  return gains;
}

void print_training(const Options& options) {
  const struct {
    Model model;
    double imbalance, plain, theirs, ideal;  // TFLOP/s per GPU
  } published[] = {{glm_45_air(8192), 2.23, 545, 757, 785.4},
                   {qwen3_235b(8192), 2.86, 315, 524, 574.7},
                   {deepseek_v3(8192), 1.30, 509, 613, 637.6}};
  std::printf(
      "Training at 64 ranks: what UltraEP publishes (plain Megatron, UltraEP, TFLOP/s a GPU; their +42 %% is the "
      "mean "
      "of the three gains) and the model's figures for capfill with %d slots on GB200 at the same imbalance.\n\n",
      options.slots);
  std::printf(
      "| model | imbalance | plain | UltraEP | forced balance | gain | modelled: experts alone | the layer, all at "
      "the "
      "data sheet's rate | the layer, as long as published for forced balance | share of a balanced step that grows "
      "with the imbalance: by their figures | modelled, all at the data sheet's rate |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  double sums[4] = {};
  for (const auto& p : published) {
    const Gains g = measure_gains(p.model, {"", EchoTraceKind::scaled, p.imbalance}, options, p.ideal * 1e12);
    const double gains[] = {p.theirs / p.plain, g.layer, g.whole, g.slow};
    std::printf("| %s | %.2f | %.0f | %.0f | %.1f |", p.model.name, p.imbalance, p.plain, p.theirs, p.ideal);
    for (int i = 0; i < 4; ++i) {
      std::printf(" %+.1f %% |", 100 * (gains[i] - 1));
      sums[i] += (gains[i] - 1) / 3;
    }
    const EchoCost even =
        echo_cost(echo_balanced(options.ranks, p.model.layer.tokens * p.model.topk), p.model.layer, gb200());
    std::printf(" %.2f | %.2f |\n", (p.ideal / p.plain - 1) / (p.imbalance - 1), even.moe() / even.total());
  }
  std::printf("| mean | | | | |");
  for (const double sum : sums) std::printf(" %+.1f %% |", 100 * sum);
  std::printf(" | |\n\n");
}

void print_points(const Options& options) {
  const struct {
    double imbalance, direct, relayed;  // ms
    int most, replicas;
  } published[] = {{1.51, 0.214, 0.194, 4, 38}, {2.01, 0.265, 0.195, 5, 46}, {3.03, 0.317, 0.188, 6, 51}};
  Model model = deepseek_v3(8192);
  Model small = model;  // the expert in their replication test
  small.layer.hidden = 4096;
  small.layer.ffn = 1536;
  std::printf(
      "Their test of one layer (64 ranks, 256 experts, top 8, 8k tokens a rank, 2 slots; counts made as they make "
      "them). "
      "They print 1.01 for the balance after. Copies in ms, of experts of 3 x 1536 x 4096 as in their test, at the "
      "data sheet's 900 GB/s "
      "(they reach 706 to 715): from each home alone, and relayed. Gains: DeepSeek-V3's layer.\n\n");
  std::printf(
      "| imbalance | clones: theirs, capfill, exact | most of one expert: theirs, capfill, exact | after: capfill, "
      "exact | "
      "copies, home alone: theirs, modelled | relayed: theirs, modelled | modelled gain, experts alone | the layer "
      "|\n"
      "|---|---|---|---|---|---|---|---|\n");
  double sums[2] = {};
  for (const auto& p : published) {
    const EchoTraceForm form{"", EchoTraceKind::ultra_ep, p.imbalance};
    const EchoTrace trace = make_echo_trace(form, {options.ranks, model.experts, model.topk, model.layer.tokens, 1});
    const plan::EchoCounts counts = trace.counts(0, options.slots);
    const plan::EchoPlan plans[] = {plan_echo(counts, {}),
                                    plan_echo(counts, {.planner = config::EchoPlanner::exact})};
    long most[2];
    double after[2];
    for (int i = 0; i < 2; ++i) {
      most[i] = 0;
      for (int expert = 0; expert < model.experts; ++expert)
        most[i] = std::max<long>(most[i], std::count(plans[i].owner.begin(), plans[i].owner.end(), expert));
      after[i] = echo_placement(counts, plans[i]).imbalance();
    }
    const EchoPlacement replicated = echo_placement(counts, plans[0]);
    const double bytes = static_cast<double>(small.layer.expert_elements() * small.layer.weight_bytes);
    const auto copies = [&](bool relay) {
      return 1e3 * echo_copy_seconds(replicated.copies, options.ranks, bytes, gb200(), relay);
    };
    const Gains g = measure_gains(model, form, options, 0);
    std::printf("| %.2f | %d, %d, %d | %d, %ld, %ld | %.4f, %.4f | %.3f, %.3f | %.3f, %.3f | %+.1f %% | %+.1f %% |\n",
                p.imbalance, p.replicas, plans[0].num_replicas(), plans[1].num_replicas(), p.most, most[0], most[1],
                after[0], after[1], p.direct, copies(false), p.relayed, copies(true), 100 * (g.layer - 1),
                100 * (g.whole - 1));
    sums[0] += (g.layer - 1) / 3;
    sums[1] += (g.whole - 1) / 3;
  }
  std::printf("| mean | | | | | | %+.1f %% | %+.1f %% |\n\n", 100 * sums[0], 100 * sums[1]);
}

}  // namespace

void print_ultra_ep(const Options& options) {
  print_training(options);
  print_points(options);
}

}  // namespace metroplex::bench
