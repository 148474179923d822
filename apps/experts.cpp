// metroplex experts: displays a run's expert trace.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/console.h"
#include "base/error.h"
#include "config/experts.h"
#include "expert_plan.h"
#include "draw/experts.h"
#include "plan/echo.h"

namespace metroplex::apps {
namespace {

using Json = nlohmann::json;

struct ExpertsOptions {
  std::string run, svg;
  std::string counts, split;  // options of --plan
  int line = 0;
  draw::ExpertPictureOptions picture;
  int columns = 0;
  bool json = false, no_color = false;
  int slots = 0, ep = 0;  // of --echo-slots; 0: no plans, and the trace's ep
  std::string planner = config::text_of(config::EchoPlanner::capfill);
};

// The effect that expert replicas in `slots` replica slots per rank would have had on the loads of a layer.
struct ReplicaSummary {
  files::Imbalance without, with;  // over ranks
  double replicas = 0;             // replicas per step
};

ReplicaSummary apply_replicas(const files::ExpertTrace& trace,
                              const std::vector<const files::ExpertTraceStep*>& steps, size_t layer,
                              const plan::EchoSizes& sizes, const plan::EchoOptions& options) {
  ReplicaSummary summary;
  std::vector<std::vector<int64_t>> before, after;
  plan::EchoWorkspace workspace;
  plan::EchoPlan plan;
  for (const files::ExpertTraceStep* step : steps) {
    // The loads are independent of the rows' source ranks.
    std::vector<int64_t> counts = draw::tokens_of_layer(trace, {step}, layer);
    before.push_back(files::tokens_of_ranks(counts, sizes.ranks));
    counts.resize(static_cast<size_t>(sizes.ranks) * static_cast<size_t>(sizes.experts), 0);
    plan_echo({counts.data(), sizes}, options, workspace, plan);
    after.push_back(plan.final_loads);
    summary.replicas += static_cast<double>(plan.num_replicas()) / static_cast<double>(steps.size());
  }
  summary.without = files::imbalance_of_steps(before);
  summary.with = files::imbalance_of_steps(after);
  return summary;
}

struct ReplicaPlans {
  plan::EchoSizes sizes;
  plan::EchoOptions options;
};

// Throws base::Error for an unknown planner or split.
plan::EchoOptions planner_options(const ExpertsOptions& options) {
  const auto planner = config::value_of<config::EchoPlanner>(options.planner);
  MPX_CHECK(planner.has_value(), "config", "--echo-planner ", options.planner,
            ": is not a planner; give greedy, binpack, capfill or exact");
  const auto split = config::value_of<config::EchoSplit>(options.split.empty() ? "auto" : options.split);
  MPX_CHECK(split.has_value(), "config", "--echo-split ", options.split,
            ": is not a split; give auto, local_first or breadth_then_depth");
  MPX_CHECK(*planner != config::EchoPlanner::binpack || options.slots == 1, "config",
            "--echo-planner binpack supports one slot per rank, not ", options.slots, "; use another planner");
  const bool splits = *planner == config::EchoPlanner::greedy || *planner == config::EchoPlanner::binpack;
  MPX_CHECK(*split != config::EchoSplit::breadth_then_depth || splits, "config",
            "--echo-split breadth_then_depth is for --echo-planner greedy or binpack, not ", options.planner,
            "; use local_first, or another planner");
  config::Model model;
  model.moe_echo_planner = *planner;
  model.moe_echo_split = *split;
  plan::EchoOptions out;
  out.planner = *planner;
  out.split = config::echo_split(model);
  return out;
}

std::optional<ReplicaPlans> replica_plans(const ExpertsOptions& options, const files::ExpertTraceHead& head) {
  if (options.slots == 0) {
    MPX_CHECK(options.ep == 0, "config", "--ep requires --echo-slots; give both");
    return std::nullopt;
  }
  const auto experts = static_cast<int>(head.num_experts),
             ep = options.ep > 0 ? options.ep : static_cast<int>(head.ep);
  MPX_CHECK(ep > 1 && experts % ep == 0, "config", "--echo-slots needs more than one rank of ep, a divisor of the ",
            experts, " experts, not ", ep, "; set it with --ep");
  const int foreign = experts - experts / ep;
  MPX_CHECK(options.slots <= foreign, "config", "--echo-slots ", options.slots, ": only ", foreign,
            " experts have their owner on another rank; give at most ", foreign);
  return ReplicaPlans{{ep, experts, options.slots}, planner_options(options)};
}

void print_plan(const ExpertsOptions& options) {
  MPX_CHECK(options.slots > 0, "config", "--plan needs --echo-slots, the replica slots of a rank; give 1 or more");
  const auto counts = read_expert_counts(options.counts, options.line);
  const size_t foreign = counts[0].size() - counts[0].size() / counts.size();
  MPX_CHECK(static_cast<size_t>(options.slots) <= foreign, "config", "--echo-slots ", options.slots, ": only ",
            foreign, " experts have their owner on another rank; give at most ", foreign);
  const ExpertPlanReport report = make_expert_plan(counts, options.slots, planner_options(options));
  if (!options.svg.empty()) files::PosixFileSystem().write_output(options.svg, to_svg(report));
  std::cout << (options.json ? to_json_text(report) : to_text(report));
}

std::string replica_text(const files::ExpertTrace& trace, const draw::ExpertPictureOptions& picture,
                         const ReplicaPlans& plans) {
  const auto steps = draw::select_steps(trace, picture);
  std::string text =
      base::concat("\nreplicas by ", config::text_of(plans.options.planner), ", ep ", plans.sizes.ranks, ", ",
                   plans.sizes.slots, " slots per rank: rows of a rank, max / mean of a step\n",
                   "               without   worst     with   worst replicas\n");
  for (size_t layer = 0; layer < trace.head.layers.size(); ++layer) {
    if (picture.layer && *picture.layer != trace.head.layers[layer]) continue;
    const ReplicaSummary summary = apply_replicas(trace, steps, layer, plans.sizes, plans.options);
    char line[128];
    std::snprintf(line, sizeof line, "  layer %-5lld %8.3f %7.3f %8.3f %7.3f %8.1f\n",
                  static_cast<long long>(trace.head.layers[layer]), summary.without.mean, summary.without.worst,
                  summary.with.mean, summary.with.worst, summary.replicas);
    text += line;
  }
  return text;
}

Json layer_json(const files::ExpertTrace& trace, const std::vector<const files::ExpertTraceStep*>& steps,
                size_t layer) {
  const std::vector<int64_t> tokens = draw::tokens_of_layer(trace, steps, layer);
  const std::vector<int64_t> ranks = files::tokens_of_ranks(tokens, trace.head.ep);
  const files::LoadQuantiles q = files::quantiles(tokens);
  const files::Imbalance of_experts = draw::imbalance_of_layer(trace, steps, layer),
                         of_ranks = draw::imbalance_of_layer_ranks(trace, steps, layer);
  return {{"layer", trace.head.layers[layer]},
          {"tokens", tokens},
          {"ranks", ranks},
          {"dropped", draw::dropped_of_layer(steps, layer)},
          {"quantiles", {{"min", q.min}, {"p10", q.p10}, {"p50", q.p50}, {"p90", q.p90}, {"max", q.max}}},
          {"experts_max_over_mean", of_experts.together},
          {"experts_max_over_mean_of_a_step", of_experts.mean},
          {"experts_max_over_mean_of_the_worst_step", of_experts.worst},
          {"ranks_max_over_mean", of_ranks.together},
          {"ranks_max_over_mean_of_a_step", of_ranks.mean},
          {"ranks_max_over_mean_of_the_worst_step", of_ranks.worst}};
}

// Per layer; for a single layer also per iteration.
Json to_json(const files::ExpertTrace& trace, const draw::ExpertPictureOptions& options,
             const std::optional<ReplicaPlans>& plans) {
  draw::expert_heats(trace, options);  // throws for layers or steps that the trace lacks
  const auto steps = draw::select_steps(trace, options);
  const files::ExpertTraceHead& head = trace.head;
  Json out{{"num_experts", head.num_experts}, {"topk", head.topk},      {"ep", head.ep}, {"etp", head.etp},
           {"iterations", Json::array()},     {"layers", Json::array()}};
  for (const auto* step : steps) out["iterations"].push_back(step->iteration);
  for (size_t layer = 0; layer < head.layers.size(); ++layer) {
    if (options.layer && *options.layer != head.layers[layer]) continue;
    Json of = layer_json(trace, steps, layer);
    for (const auto* step : options.layer ? steps : std::vector<const files::ExpertTraceStep*>{})
      of["by_iteration"].push_back(draw::tokens_of_layer(trace, {step}, layer));
    if (plans) {
      const ReplicaSummary summary = apply_replicas(trace, steps, layer, plans->sizes, plans->options);
      of["clones"] = {{"ep", plans->sizes.ranks},
                      {"slots", plans->sizes.slots},
                      {"of_a_step", summary.replicas},
                      {"max_over_mean_without", summary.without.mean},
                      {"max_over_mean_without_worst", summary.without.worst},
                      {"max_over_mean_with", summary.with.mean},
                      {"max_over_mean_with_worst", summary.with.worst}};
    }
    out["layers"].push_back(of);
  }
  return out;
}

}  // namespace

int run_experts(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Draws how the tokens of a run were spread over its experts: heat maps of layers by experts, of layers by\n"
      "iterations, and of layers by the ranks that own the experts, from the file of train.expert_trace_file.",
      "metroplex experts");
  ExpertsOptions options;
  app.add_option("run", options.run, "the trace file, or the folder that contains it");
  app.add_option(
      "--plan", options.counts,
      "instead of a run: plan replicas for these counts, [[rows of rank 0 to each expert], ...] or a file,\n"
      "with --echo-slots, --echo-planner and --echo-split");
  app.add_option("--line", options.line, "with --plan: line, counted from 0, of a file of model.moe_echo_dump_dir")
      ->check(CLI::Range(0, 1000000000))
      ->needs("--plan");
  app.add_option("--layer", options.picture.layer, "iterations of this layer instead of all layers")
      ->excludes("--plan");
  app.add_option("--iteration", options.picture.iteration, "only this iteration")->excludes("--plan");
  app.add_option("--svg", options.svg, "also write the picture to this file")->check(no_file);
  app.add_flag("--json", options.json, "print the numbers instead of the picture");
  app.add_flag("--no-color", options.no_color, "no colors, even on a terminal");
  app.add_option("--columns", options.columns, "columns of a line; default: those of the terminal, or 100")
      ->check(CLI::Range(20, 100000));
  app.add_option("--echo-slots", options.slots,
                 "also show how ECHO would balance each step with this many replica slots per rank")
      ->check(CLI::Range(1, 65536));
  app.add_option("--echo-planner", options.planner, "with --echo-slots: greedy, binpack, capfill (default) or exact")
      ->needs("--echo-slots");
  app.add_option("--echo-split", options.split, "with --plan: auto (default), local_first or breadth_then_depth")
      ->needs("--plan");
  app.add_option("--ep", options.ep, "with --echo-slots: ranks that own the experts; default: those of the trace")
      ->check(CLI::Range(2, 65536))
      ->excludes("--plan");
  app.footer(
      "Examples:\n  metroplex experts runs/moe/experts.jsonl --layer 3 --svg layer3.svg\n"
      "  metroplex experts --plan '[[8,1,1],[9,2,0],[7,1,1]]' --echo-slots 1 --echo-planner greedy");
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;
  MPX_CHECK(options.run.empty() != options.counts.empty(), "config",
            "metroplex experts takes the file of a run, or --plan with counts; give one of them");
  if (!options.counts.empty()) {
    print_plan(options);
    return 0;
  }

  files::PosixFileSystem disk;
  const files::ExpertTrace trace = files::read_expert_trace(disk, files::find_expert_trace(disk, options.run));
  const std::optional<ReplicaPlans> plans = replica_plans(options, trace.head);
  const Terminal terminal = terminal_of_stdout();
  const int columns = terminal.columns > 0 ? terminal.columns : 100;
  options.picture.columns = options.columns > 0 ? options.columns : columns;
  if (terminal.there)
    options.picture.ink = terminal.colour && !options.no_color ? draw::Ink::colour : draw::Ink::blocks;
  if (!options.svg.empty()) disk.write_output(options.svg, draw::draw_svg(trace, options.picture));
  if (options.json) {
    std::cout << json_text(to_json(trace, options.picture, plans)) << "\n";
  } else {
    write_styled(std::cout, draw::draw_text(trace, options.picture));
    if (plans) write_styled(std::cout, replica_text(trace, options.picture, *plans));
  }
  return 0;
}

}  // namespace metroplex::apps
