// metroplex schedule: draws a pipeline schedule as it runs, with its bubble and its live activations.
#include <algorithm>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/commands.h"
#include "base/error.h"
#include "plan/draw.h"
#include "plan/layout.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"

namespace metroplex::apps {
namespace {

struct ScheduleOptions {
  std::string schedule = "auto";
  plan::ScheduleRequest request;
  plan::TimelineCosts costs;
  plan::DrawOptions draw;
  std::string svg;
  int columns = 0;
  bool json = false, no_color = false, table = false;
  // With --graphs: what is captured, and the shape of a layer's input.
  bool graphs = false;
  int64_t layers = 0, seq_length = 4096, micro_batch_size = 1, hidden_size = 4096, bytes_per_element = 2;
  std::string layout;

  int64_t layer_bytes() const { return seq_length * micro_batch_size * hidden_size * bytes_per_element; }
};

void declare(CLI::App& app, ScheduleOptions& options) {
  auto& request = options.request;
  app.add_option("--pp", request.num_stages, "pipeline ranks")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--vpp", request.num_chunks, "model chunks a rank holds")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--microbatches", request.num_microbatches, "microbatches of a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--schedule", options.schedule, "auto, none, gpipe, 1f1b or interleaved")->capture_default_str();
  app.add_option("--group-size", request.microbatch_group_size,
                 "interleaved: microbatches a chunk takes in a row; 0 is --pp")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--forward-only", request.forward_only, "evaluation: no backward");
  app.add_flag("--overlap-p2p", request.overlap_p2p, "interleaved: sends and receives of forward and backward apart");
  app.add_option("--forward", options.costs.forward, "time of one microbatch's forward on a rank")
      ->capture_default_str();
  app.add_option("--backward", options.costs.backward, "time of one microbatch's backward on a rank")
      ->capture_default_str();
  app.add_option("--p2p", options.costs.p2p, "time of one tensor between two ranks")->capture_default_str();
  app.add_flag("--blocking", options.costs.blocking_p2p, "ranks wait in their sends and receives");
  app.add_option("--svg", options.svg, "also write the picture to this file");
  app.add_flag("--json", options.json, "print every action with its times instead of the picture");
  app.add_flag("--table", options.table, "print every action of every rank instead of the picture");
  app.add_flag("--no-color", options.no_color, "plain text even on a terminal");
  app.add_option("--columns", options.columns,
                 "columns of the picture's bars; left out, as many as the terminal has room for, else 160")
      ->check(CLI::Range(20, 100000));
  const std::string group = "Captured graphs";
  CLI::Option* graphs =
      app.add_flag("--graphs", options.graphs,
                   "draw the live sets of captured layers too, and how many graphs and bytes they take on every rank")
          ->group(group);
  const auto size = [&](const char* name, int64_t& value, int64_t most, const char* help) {
    app.add_option(name, value, help)
        ->check(CLI::Range(int64_t{1}, most))
        ->capture_default_str()
        ->group(group)
        ->needs(graphs);
  };
  app.add_option("--layers", options.layers, "layers of the model, all captured; 0: one a chunk")
      ->check(CLI::Range(0, 100000))
      ->group(group)
      ->needs(graphs);
  app.add_option("--layout", options.layout, "layers of every stage, as parallel.pipeline_model_parallel_layout")
      ->group(group)
      ->needs(graphs);
  size("--seq-length", options.seq_length, 1 << 24, "tokens of a sample, on one rank");
  size("--micro-batch-size", options.micro_batch_size, 1 << 20, "samples of a microbatch");
  size("--hidden-size", options.hidden_size, 1 << 20, "width of the layers' inputs");
  size("--bytes-per-element", options.bytes_per_element, 8, "of their format");
  app.footer(
      "Example:\n  metroplex schedule --pp 4 --vpp 2 --microbatches 8 --svg interleaved.svg\n"
      "  metroplex schedule --sequence --help     how context-parallel ranks share a sequence");
}

struct Graphs {
  std::vector<plan::GraphPlan> plans;  // one a rank
  std::vector<plan::GraphNumbers> numbers;
};

// [rank][chunk]
std::vector<std::vector<int>> captured_layers(const plan::PipelineTable& table, const ScheduleOptions& options) {
  const auto stages = static_cast<size_t>(table.placement().stages());
  std::vector<int> of_stage(stages, 0);
  if (options.layout.empty()) {
    const auto chunks = static_cast<int>(stages);
    const int layers = options.layers == 0 ? chunks : static_cast<int>(options.layers);
    MPX_CHECK(layers % chunks == 0, "plan", "--layers ", layers, " do not divide over --pp ", table.num_stages,
              " x --vpp ", table.num_chunks, "; choose a multiple of ", chunks,
              ", or say those of each stage with --layout");
    of_stage.assign(stages, layers / chunks);
  } else {
    MPX_CHECK(options.layers == 0, "plan", "--layers ", options.layers,
              " excludes --layout, which says them; keep one");
    const plan::PipelineLayout layout = plan::parse_layout(options.layout, table.num_stages);
    MPX_CHECK(layout.stages.size() == stages, "plan", "--layout ", options.layout, " has ", layout.num_chunks(),
              " chunks a rank, the schedule has ", table.num_chunks, "; give --vpp ", layout.num_chunks());
    for (size_t stage = 0; stage < stages; ++stage) {
      const auto& kinds = layout.stages[stage];
      of_stage[stage] = static_cast<int>(std::count(kinds.begin(), kinds.end(), plan::LayerKind::decoder));
    }
  }
  std::vector<std::vector<int>> layers(static_cast<size_t>(table.num_stages));
  for (size_t stage = 0; stage < stages; ++stage)
    layers[static_cast<size_t>(table.placement().place_of(static_cast<int>(stage)).rank)].push_back(of_stage[stage]);
  return layers;
}

Graphs plan_all(const plan::PipelineTable& table, const ScheduleOptions& options) {
  const auto layers = captured_layers(table, options);
  Graphs graphs;
  for (int rank = 0; rank < table.num_stages; ++rank) {
    const auto captured = plan::alike_layers(layers[static_cast<size_t>(rank)]);
    graphs.plans.push_back(plan::plan_graphs(table, rank, captured));
    plan::verify_graphs(graphs.plans.back(), table, rank);
    graphs.numbers.push_back(plan::graph_numbers(graphs.plans.back(), table, rank, captured, options.layer_bytes()));
  }
  return graphs;
}

nlohmann::json to_json(const plan::GraphPlan& plan, const plan::GraphNumbers& numbers) {
  nlohmann::json captures = nlohmann::json::array();
  for (const plan::GraphCapture& capture : plan.captures) {
    captures.push_back({{"kind", plan::action_name(capture.kind)},
                        {"chunk", capture.chunk},
                        {"layer", capture.layer},
                        {"set", capture.set},
                        {"microbatch", capture.microbatch}});
  }
  return {{"layers_of_chunk", plan.layers_of_chunk},
          {"sets_of_chunk", plan.sets_of_chunk},
          {"set_of_microbatch", plan.set_of},
          {"graphs", numbers.graphs},
          {"megatron_graphs", numbers.megatron_graphs},
          {"bound", numbers.bound},
          {"megatron_sets", numbers.megatron_sets},
          {"megatron_sets_in_turns", numbers.megatron_sets_in_turns},
          {"input_bytes", numbers.bytes.inputs},
          {"result_bytes", numbers.bytes.results},
          {"gradient_bytes", numbers.bytes.gradients},
          {"megatron_input_bytes", numbers.megatron_inputs},
          {"captures", captures}};
}

nlohmann::json to_json(const plan::PipelineTable& table, const plan::Timeline& timeline, const Graphs* graphs) {
  nlohmann::json ranks = nlohmann::json::array();
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    nlohmann::json actions = nlohmann::json::array();
    for (const auto& [action, start, end] : timeline.ranks[rank]) {
      actions.push_back({{"kind", plan::action_name(action.kind)},
                         {"microbatch", action.microbatch},
                         {"chunk", action.chunk},
                         {"peer", action.peer},
                         {"batch", action.batch},
                         {"start", start},
                         {"end", end}});
    }
    ranks.push_back({{"rank", rank},
                     {"busy", timeline.busy[rank]},
                     {"bubble_share", timeline.bubble_share[rank]},
                     {"live_activations", timeline.peak_live_activations[rank]},
                     {"actions", actions}});
    if (graphs != nullptr) ranks.back()["graphs"] = to_json(graphs->plans[rank], graphs->numbers[rank]);
  }
  return {{"schedule", table.name},
          {"pp", table.num_stages},
          {"vpp", table.num_chunks},
          {"microbatches", table.num_microbatches},
          {"forward_only", table.forward_only},
          {"length", timeline.length},
          {"bubble_share", timeline.total_bubble_share},
          {"formula_bubble_share", plan::formula_bubble_share(table)},
          {"ranks", ranks}};
}

void print_table(const plan::PipelineTable& table) {
  for (size_t rank = 0; rank < table.ranks.size(); ++rank) {
    std::cout << "rank " << rank << "\n";
    for (const auto& action : table.ranks[rank]) {
      std::cout << "  " << plan::action_name(action.kind) << " microbatch " << action.microbatch << " chunk "
                << action.chunk;
      if (action.peer >= 0) std::cout << (plan::is_send(action.kind) ? " to rank " : " from rank ") << action.peer;
      if (action.batch >= 0) std::cout << " [batch " << action.batch << "]";
      std::cout << "\n";
    }
  }
}

void write_svg(const std::string& path, const std::string& svg) {
  std::ofstream file(path, std::ios::binary);
  file << svg;
  file.close();
  MPX_CHECK(file.good(), "files", "cannot write '", path, "'; does its folder exist and is there room?");
}

}  // namespace

int run_schedule(const std::vector<std::string>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--sequence") != arguments.end()) return run_sequence(arguments);
  CLI::App app(
      "Draws a pipeline schedule: who runs which microbatch when, how long each rank idles (beside the\n"
      "textbook's formula), and how many activations it holds. The table drawn is the one training runs.",
      "metroplex schedule");
  ScheduleOptions options;
  options.request.num_stages = 4;
  options.request.num_microbatches = 8;
  declare(app, options);
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;

  const auto table = plan::build_schedule(options.schedule, options.request);
  plan::verify(table);
  const auto timeline = plan::replay(table, options.costs);
  const Graphs graphs = options.graphs ? plan_all(table, options) : Graphs{};
  if (!options.svg.empty()) write_svg(options.svg, plan::draw_svg(table, timeline));
  if (options.json) {
    std::cout << to_json(table, timeline, options.graphs ? &graphs : nullptr).dump(2) << "\n";
    return 0;
  }
  if (options.table) {
    print_table(table);
    return 0;
  }
  const Terminal terminal = terminal_of_stdout();
  options.draw.color = !options.no_color && terminal.colour;
  if (options.columns > 0) {
    options.draw.max_columns = options.columns;
  } else {
    options.draw.line_columns = terminal.columns;
  }
  std::cout << plan::draw_text(table, timeline, options.draw);
  std::cout << "bubble of all ranks " << 100 * timeline.total_bubble_share << " %, by formula "
            << 100 * plan::formula_bubble_share(table) << " %; length " << timeline.length << "\n";
  if (options.graphs) {
    std::cout << "\n" << plan::draw_graphs(table, timeline, graphs.plans, graphs.numbers, options.draw);
  }
  return 0;
}

}  // namespace metroplex::apps
