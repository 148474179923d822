// Figures: where replicas pay off, and the balance with fewer replicas.
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "parts.h"
#include "svg.h"

namespace metroplex::bench {
namespace {

constexpr double kBandwidths[] = {25e9, 50e9, 200e9, 450e9, 900e9};
constexpr int64_t kTokens[] = {512, 1024, 2048, 4096, 8192, 16384, 32768};
constexpr double kImbalances[] = {1.05, 1.1, 1.2, 1.35, 1.5, 2, 3, 5};

void write_svg(const Options& options, const char* what, const std::string& svg) {
  if (options.svg_folder.empty()) return;
  const std::string path = base::concat(options.svg_folder, "/", options.svg_name, "-", what, ".svg");
  std::ofstream stream(path, std::ios::binary);
  stream << svg;
  stream.close();
  MPX_CHECK(!stream.fail(), "files", "cannot write '", path, "'; check --svg");
  std::printf("![%s](%s-%s.svg)\n\n", what, options.svg_name.c_str(), what);
}

// One switch between all ranks, with the FLOP/s of GB200.
EchoMachine make_machine(double bandwidth, int ranks) {
  EchoMachine machine = echo_machines()[echo_machines().size() - 2];
  machine.link = machine.network = bandwidth;
  machine.domain = ranks;
  return machine;
}

struct Point {
  double imbalance = 1, replicas = 0, share = 1;
};

struct Cell {
  EchoPlacement home, replicated;
};

Cell measure_cell(const Model& model, double imbalance, const Options& options) {
  const EchoTraceForm form{"", EchoTraceKind::scaled, imbalance};
  const EchoTrace trace = make_echo_trace(form, {options.ranks, model.experts, model.topk, model.layer.tokens, 1});
  const plan::EchoCounts counts = trace.counts(0, options.slots);
  return {echo_at_owner(counts), echo_placement(counts, plan_echo(counts, {}))};
}

// Returns the imbalance at which the gain first exceeds the cost, in rows of the figure; the center of a square is at
// .5.
double break_even(const std::vector<double>& surplus) {
  for (size_t i = 0; i < surplus.size(); ++i) {
    if (surplus[i] <= 0) continue;
    if (i == 0) return 0;
    return static_cast<double>(i) - 0.5 + -surplus[i - 1] / (surplus[i] - surplus[i - 1]);
  }
  return static_cast<double>(surplus.size());
}

double imbalance_at(double row) {
  if (row >= static_cast<double>(std::size(kImbalances))) return INFINITY;
  if (row < 0.5) return kImbalances[0];
  const auto below = static_cast<size_t>(row - 0.5);
  const double part = row - 0.5 - static_cast<double>(below);
  return below + 1 == std::size(kImbalances)
             ? kImbalances[below]
             : kImbalances[below] + part * (kImbalances[below + 1] - kImbalances[below]);
}

std::string format_imbalance(double imbalance) {
  if (imbalance == kImbalances[0]) return "below 1.05";
  if (std::isinf(imbalance)) return "above 5";
  char text[16];
  std::snprintf(text, sizeof text, "%.2f", imbalance);
  return text;
}

// One row per number of tokens, one column per bandwidth.
void print_break_even(const std::vector<std::string>& tokens, const std::vector<std::vector<std::string>>& table,
                      const Options& options) {
  std::printf(
      "Imbalance from which clones pay: by the rule (the rows that the fullest rank is rid of take longer than plan, "
      "clones "
      "and exposed gradients) / by the whole time, with dispatch and combine, which the rule leaves out. Products of "
      "GB200, "
      "%d ranks on one switch, capfill with %d slots.\n\n",
      options.ranks, options.slots);
  std::printf("| tokens a rank |");
  for (const double bandwidth : kBandwidths) std::printf(" %.0f GB/s |", bandwidth / 1e9);
  std::printf("\n|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < table.size(); ++i) {
    std::printf("| %s |", tokens[i].c_str());
    for (const std::string& cell : table[i]) std::printf(" %s |", cell.c_str());
    std::printf("\n");
  }
  std::printf("\n");
}

}  // namespace

void print_gain(const Options& options) {
  Heat heat{
      "Gain of capfill over no clones, % of the layer of experts; above the lines clones pay (solid: by the rule, "
      "dashed: by the time)",
      "tokens a rank",
      "largest load / mean before",
      {},
      {},
      {}};
  for (const double imbalance : kImbalances) {
    char text[16];
    std::snprintf(text, sizeof text, "%.3g", imbalance);
    heat.rows.push_back(text);
  }
  for (const double bandwidth : kBandwidths) {
    char title[32];
    std::snprintf(title, sizeof title, "%.0f GB/s", bandwidth / 1e9);
    heat.panels.push_back({title, std::vector<std::vector<double>>(std::size(kImbalances)), {}, {}});
  }
  std::vector<std::vector<std::string>> table;
  for (const int64_t tokens : kTokens) {
    heat.columns.push_back(tokens < 1024 ? "512" : std::to_string(tokens / 1024) + "k");
    const Model model = deepseek_v3(tokens);
    std::vector<Cell> cells;
    for (const double imbalance : kImbalances) cells.push_back(measure_cell(model, imbalance, options));
    std::vector<std::string>& row = table.emplace_back();
    for (size_t b = 0; b < std::size(kBandwidths); ++b) {
      const EchoMachine machine = make_machine(kBandwidths[b], options.ranks);
      std::vector<double> by_rule, by_time;
      for (size_t i = 0; i < cells.size(); ++i) {
        const double before = echo_cost(cells[i].home, model.layer, machine).moe();
        const double after = echo_cost(cells[i].replicated, model.layer, machine).moe();
        heat.panels[b].values[i].push_back(before / after - 1);
        const EchoGain gain = echo_gain(cells[i].home, cells[i].replicated, model.layer, machine);
        by_rule.push_back(gain.gained - gain.paid);
        by_time.push_back(before - after);
      }
      const double lines[] = {break_even(by_rule), break_even(by_time)};
      const auto column = static_cast<double>(heat.columns.size());
      for (const double edge : {column - 1, column}) {
        heat.panels[b].line.emplace_back(edge, lines[0]);
        heat.panels[b].dashed.emplace_back(edge, lines[1]);
      }
      row.push_back(format_imbalance(imbalance_at(lines[0])) + " / " + format_imbalance(imbalance_at(lines[1])));
    }
  }
  print_break_even(heat.columns, table, options);
  write_svg(options, "gain", render_svg(heat, 1));
}

void print_replicas(const Options& options) {
  constexpr int64_t kTolerances[] = {0, 25, 50, 100, 200, 400, 700, 1000, 1500, 2000};
  const Model model = deepseek_v3(8192);
  const EchoMachine gb200 = make_machine(900e9, options.ranks);
  Chart chart{"Clones against balance: capfill by its tolerance (lines), exact (squares)",
              "largest load / mean after",
              "clones",
              1,
              1.2,
              70,
              {}};
  std::printf(
      "max/mean, clones and the modelled share of forced balance on GB200 in %%, by the tolerance of capfill.\n\n| "
      "counts | exact |");
  for (const int64_t tolerance : kTolerances) std::printf(" capfill %.4g %% |", static_cast<double>(tolerance) / 100);
  std::printf("\n|---|---|");
  for (size_t i = 0; i < std::size(kTolerances); ++i) std::printf("---|");
  std::printf("\n");
  for (const EchoTraceForm& form : echo_trace_forms()) {
    if (form.kind != EchoTraceKind::scaled && form.kind != EchoTraceKind::ultra_ep) continue;
    const EchoTrace trace = make_echo_trace(form, {options.ranks, model.experts, model.topk, model.layer.tokens, 1});
    const plan::EchoCounts counts = trace.counts(0, options.slots);
    const double even =
        echo_cost(echo_balanced(options.ranks, model.layer.tokens * model.topk), model.layer, gb200).moe();
    const auto point = [&](const plan::EchoOptions& how) {
      const plan::EchoPlan plan = plan_echo(counts, how);
      const EchoPlacement placement = echo_placement(counts, plan);
      const double share = even / echo_cost(placement, model.layer, gb200).moe();
      return Point{placement.imbalance(), static_cast<double>(plan.num_replicas()), share};
    };
    const auto exact = point({.planner = config::EchoPlanner::exact});
    std::printf("| %s | %.4f, %.0f, %.1f |", form.name, exact.imbalance, exact.replicas, 100 * exact.share);
    Line line{base::concat("capfill, ", form.name), {}, true};
    for (const int64_t tolerance : kTolerances) {
      const auto found = point({.eps_bp = tolerance});
      std::printf(" %.4f, %.0f, %.1f |", found.imbalance, found.replicas, 100 * found.share);
      line.points.emplace_back(found.imbalance, found.replicas);
    }
    std::printf("\n");
    if (form.kind == EchoTraceKind::ultra_ep) continue;
    chart.lines.push_back(line);
    chart.lines.push_back({base::concat("exact, ", form.name), {{exact.imbalance, exact.replicas}}, false});
  }
  std::printf("\n");
  write_svg(options, "clones", render_svg(chart));
}

}  // namespace metroplex::bench
