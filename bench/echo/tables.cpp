#include <cstdio>

#include "base/error.h"
#include "parts.h"

namespace metroplex::bench {
namespace {

void print_table(const std::vector<Summary>& summaries) {
  std::printf(
      "| system | max/mean: mean | p50 | p99 | worst | clones | weights moved, GB | of one sender, GB | relay rounds "
      "of one home | "
      "rows moved | rows between ranks |");
  for (const EchoMachine& machine : echo_machines()) std::printf(" %s |", machine.name);
  std::printf("\n|---|---|---|---|---|---|---|---|---|---|---|");
  for (size_t i = 0; i < echo_machines().size(); ++i) std::printf("---|");
  std::printf("\n");
  for (const Summary& summary : summaries) {
    std::printf("| %s | %.3f | %.3f | %.3f | %.3f |", summary.name.c_str(), summary.mean(), summary.quantile(0.5),
                summary.quantile(0.99), summary.quantile(1));
    if (summary.share.empty()) {
      std::printf("\n");
      continue;
    }
    std::printf(" %.1f | %.2f | %.2f | %.1f | %.1f %% | %.1f %% |", summary.replicas, summary.bytes / 1e9,
                summary.sender_bytes / 1e9, summary.rounds, 100 * summary.away, 100 * summary.crossing);
    for (const double share : summary.share) std::printf(" %.1f %% |", 100 * share);
    std::printf("\n");
  }
  std::printf("\n");
}

// One row per trace, one column per system; `cell` formats a summary.
template <class Cell>
void print_overview(const std::vector<std::pair<std::string, std::vector<Summary>>>& all, const Cell& cell) {
  std::printf("| counts |");
  for (const Summary& summary : all[0].second) std::printf(" %s |", summary.name.c_str());
  std::printf("\n|---|");
  for (size_t i = 0; i < all[0].second.size(); ++i) std::printf("---|");
  std::printf("\n");
  for (const auto& [name, summaries] : all) {
    std::printf("| %s |", name.c_str());
    for (const Summary& s : summaries) cell(s);
    std::printf("\n");
  }
  std::printf("\n");
}

bool is_shown(const EchoTraceForm& form) {
  return (form.kind == EchoTraceKind::scaled && form.value == 2) || form.kind == EchoTraceKind::ultra_ep ||
         form.kind == EchoTraceKind::drift || (form.kind == EchoTraceKind::hot_experts && form.value == 1);
}

// Converts rows per source to rows per rank. Sources of one tensor-parallel group are merged. If the trace has other
// ranks, all rows are distributed evenly.
std::vector<int64_t> source_counts(const files::ExpertTraceHead& head, const int64_t* tokens, int ranks) {
  const auto experts = static_cast<size_t>(head.num_experts);
  std::vector<int64_t> counts(static_cast<size_t>(ranks) * experts, 0), sums(experts, 0);
  for (int64_t source = 0; source < head.sources(); ++source) {
    for (size_t expert = 0; expert < experts; ++expert) {
      const int64_t rows = tokens[static_cast<size_t>(source) * experts + expert];
      if (head.ep == ranks) counts[static_cast<size_t>(source / head.etp) * experts + expert] += rows;
      else sums[expert] += rows;
    }
  }
  if (head.ep == ranks) return counts;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
    for (size_t expert = 0; expert < experts; ++expert) {
      const auto all = static_cast<int64_t>(ranks),
                 turn = static_cast<int64_t>((rank + expert) % static_cast<size_t>(ranks));
      counts[rank * experts + expert] = sums[expert] / all + (turn < sums[expert] % all ? 1 : 0);
    }
  }
  return counts;
}

}  // namespace

void print_assumptions(const Model& model, const Options& options) {
  std::printf(
      "**No figure here is a headline: counts by Zipf's law and mock tokens are more uneven than a trained "
      "router's (arXiv:2605.20982: up to 2.35 times), and times are modelled, not measured.** Recorded "
      "counts: `--trace FILE` or `--counts FILE`.\n\n");
  std::printf(
      "%d ranks, %d experts of %s (%lld x %lld, bf16), %d a token, %lld tokens a rank and layer, %d slots a "
      "rank; %d steps, of which the first %d are history only. Shares of forced balance are of the layer of experts "
      "(rows of the fullest rank, dispatch and combine, clones before forward and again before backward, "
      "gradients that the backward of the layer's other work does not hide, the plan). Weights moved count one "
      "way.\n\n",
      options.ranks, model.experts, model.name, static_cast<long long>(model.layer.hidden),
      static_cast<long long>(model.layer.ffn), model.topk, static_cast<long long>(model.layer.tokens), options.slots,
      options.steps, options.warm_up);
  std::printf(
      "| machine | TFLOP/s | GB/s in a domain | of ranks | GB/s beyond | plan and columns, us |\n"
      "|---|---|---|---|---|---|\n");
  for (const EchoMachine& m : echo_machines())
    std::printf("| %s | %.4g | %.4g | %d | %.4g | %.0f |\n", m.name, m.flops / 1e12, m.link / 1e9, m.domain,
                m.network / 1e9, m.plan * 1e6);
  std::printf("\n");
}

void print_synthetic(const Model& model, const Options& options) {
  std::vector<std::pair<std::string, std::vector<Summary>>> all;
  for (const EchoTraceForm& form : echo_trace_forms()) {
    const EchoTrace trace =
        make_echo_trace(form, {options.ranks, model.experts, model.topk, model.layer.tokens, options.steps});
    all.emplace_back(form.name, summaries(trace, options.slots, model.layer, static_cast<size_t>(options.warm_up)));
  }
  std::printf("### max/mean, mean of the steps\n\n");
  print_overview(all, [](const Summary& summary) { std::printf(" %.3f |", summary.mean()); });
  const auto machines = echo_machines();
  for (size_t i = 0; i < machines.size(); ++i) {
    if (i > 0 && machines[i].flops == machines[i - 1].flops && machines[i].link == machines[i - 1].link) continue;
    std::printf("### %s: modelled share of forced balance, %% (of the steps that pay, %%)\n\n", machines[i].name);
    print_overview(all, [&](const Summary& summary) {
      if (summary.share.empty()) std::printf(" |");
      else std::printf(" %.1f (%.0f) |", 100 * summary.share[i], 100 * summary.pays[i]);
    });
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (!options.all && !is_shown(echo_trace_forms()[i])) continue;
    std::printf("### %s\n\n", all[i].first.c_str());
    print_table(all[i].second);
  }
}

void print_recorded(const files::ExpertTrace& trace, const std::string& path, const Model& model,
                    const Options& options) {
  const files::ExpertTraceHead& head = trace.head;
  MPX_CHECK(head.num_experts % options.ranks == 0, "files", "'", path, "': ", head.num_experts,
            " experts cannot be dealt to ", options.ranks, " ranks; choose --ranks that divides them");
  MPX_CHECK(!trace.steps.empty(), "files", "'", path, "' has no steps");
  const auto steps = static_cast<int>(trace.steps.size());
  const int warm_up = std::min(options.warm_up, steps / 2);
  for (size_t layer = 0; layer < head.layers.size(); ++layer) {
    EchoTrace counts{
        base::concat("layer ", head.layers[layer]), {options.ranks, static_cast<int>(head.num_experts), 0}, {}};
    const auto of_layer = static_cast<size_t>(head.sources() * head.num_experts);
    for (const files::ExpertTraceStep& step : trace.steps)
      counts.steps.push_back(source_counts(head, step.tokens.data() + layer * of_layer, options.ranks));
    std::printf("### %s, layer %lld: %d steps, the first %d history only, microbatches of a step as one; %s\n\n",
                path.c_str(), static_cast<long long>(head.layers[layer]), steps, warm_up,
                head.ep == options.ranks ? "sources as recorded" : "rows dealt to all sources alike");
    EchoLayer shape = model.layer;
    if (head.topk > 0) shape.tokens = echo_at_owner(counts.counts(0, 0)).total() / (options.ranks * head.topk);
    print_table(summaries(counts, options.slots, shape, static_cast<size_t>(warm_up)));
  }
}

}  // namespace metroplex::bench
