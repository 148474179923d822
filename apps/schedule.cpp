// metroplex schedule: draws a pipeline schedule over time, with its bubble and its live activations.
#include <algorithm>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>

#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/console.h"
#include "apps/commands.h"
#include "base/error.h"
#include "base/join.h"
#include "config/derived.h"
#include "config/experts.h"
#include "config/rules_transformer.h"
#include "files/file_system.h"
#include "draw/schedule.h"
#include "plan/graph_exits.h"
#include "plan/layout.h"
#include "plan/schedule_search.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"

namespace metroplex::apps {
namespace {

struct ScheduleOptions {
  std::string schedule = "auto";
  plan::ScheduleRequest request;
  replay::TimelineCosts costs;
  draw::ScheduleOptions draw;
  std::optional<double> weight;
  std::string svg;
  int columns = 0;
  bool json = false, no_color = false, table = false, compare = false;
  // For --graphs: the captured modules, and the shape of a layer's input.
  bool graphs = false;
  std::string impl = "transformer_engine";
  std::vector<std::string> modules{"attn"};
  int64_t layers = 0, seq_length = 4096, micro_batch_size = 1;
  std::string layout, moe_layer_freq = "1";
  plan::CapturedLayer layer{.hidden_size = 4096};  // includes experts if there are any
};

void declare(CLI::App& app, ScheduleOptions& options) {
  auto& request = options.request;
  app.add_option("--pp", request.num_stages, "pipeline ranks")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--vpp", request.num_chunks, "model chunks per rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--microbatches", request.num_microbatches, "microbatches per step")
      ->check(not_above_0)
      ->capture_default_str();
  app.add_option("--schedule", options.schedule, base::join(config::words_of<config::Schedule>(), ", "))
      ->capture_default_str();
  app.add_option("--group-size", request.microbatch_group_size,
                 "interleaved: consecutive microbatches of a chunk; 0: --pp")
      ->check(below_0);
  app.add_flag("--forward-only", request.forward_only, "evaluation: no backward");
  app.add_flag("--overlap-p2p", request.overlap_p2p, "interleaved: separate forward and backward sends and receives");
  app.add_option("--forward", options.costs.forward, "time of one microbatch's forward on a rank")
      ->check(no_time)
      ->capture_default_str();
  app.add_option("--backward", options.costs.backward, "time of one microbatch's backward on a rank")
      ->check(no_time)
      ->capture_default_str();
  app.add_option(
         "--weight", options.weight,
         "part of --backward for weight gradients, which zero-bubble schedules run apart; default: half of it")
      ->check(no_time);
  app.add_option("--p2p", options.costs.p2p, "time of one tensor between two ranks")
      ->check(no_time)
      ->capture_default_str();
  app.add_flag("--blocking", options.costs.blocking_p2p, "ranks block in sends and receives");
  app.add_option("--svg", options.svg, "also write the picture to this file")->check(no_file);
  app.add_flag("--json", options.json, "print every action with its times instead of the picture");
  app.add_flag("--table", options.table, "print every action of every rank instead of the picture");
  app.add_flag("--overlap-experts", request.overlaps_experts,
               "none, 1f1b, interleaved and dualpipe_v: forwards and backwards of different microbatches in turns");
  app.add_flag(
      "--compare", options.compare,
      "compare the schedules with one chunk per rank, or two in a V, for these times, and one that is searched for "
      "them, instead of the picture");
  app.add_option("--live", request.live_microbatches,
                 "--compare and searched: live microbatches that fit into the memory of a rank; 0: --pp")
      ->check(below_0);
  app.add_option("--rank-factors", request.times.scale,
                 "factors of the ranks' times, one per rank, separated by commas")
      ->delimiter(',')
      ->check(no_time);
  app.add_flag("--no-color", options.no_color, "plain text even on a terminal");
  app.add_option("--columns", options.columns,
                 "columns of the picture's bars; default: as many as fit the terminal, or 160")
      ->check(CLI::Range(20, 100000));
  const std::string group = "Captured graphs";
  CLI::Option* graphs =
      app.add_flag("--graphs", options.graphs,
                   "also draw the graph instances of captured layers, with the number of graphs and "
                   "bytes on every rank;\n"
                   "not with --hybrid, which captures nothing")
          ->group(group);
  const auto size = [&](const char* name, int64_t& value, int64_t most, const char* help) {
    app.add_option(name, value, help)
        ->check(CLI::Range(int64_t{1}, most))
        ->capture_default_str()
        ->group(group)
        ->needs(graphs);
  };
  app.add_option("--cuda-graph-impl", options.impl,
                 "transformer_engine or local: parts of layers; full_iteration: the step")
      ->check(CLI::IsMember({"transformer_engine", "local", "full_iteration"}))
      ->capture_default_str()
      ->group(group)
      ->needs(graphs);
  app.add_option("--cuda-graph-modules,--cuda-graph-scope", options.modules,
                 "captured modules of every layer, as in train.cuda_graph_modules, separated by commas or spaces; "
                 "empty: whole layers")
      ->group(group)
      ->needs(graphs);
  app.add_option("--layers", options.layers, "layers of the model; 0: one per chunk")
      ->check(CLI::Range(0, 100000))
      ->group(group)
      ->needs(graphs);
  app.add_option("--layout", options.layout, "layers of every stage, as in parallel.pipeline_model_parallel_layout")
      ->group(group)
      ->needs(graphs);
  size("--seq-length", options.seq_length, 1 << 24, "tokens of a sample, on one rank");
  size("--micro-batch-size", options.micro_batch_size, 1 << 20, "samples of a microbatch");
  size("--hidden-size", options.layer.hidden_size, 1 << 20, "width of the layers' inputs");
  size("--bytes-per-element", options.layer.element, 8, "bytes of an element of these inputs");
  app.add_option("--num-experts", options.layer.num_experts, "experts of an MoE layer; 0: all layers are dense")
      ->check(CLI::Range(0, 65536))
      ->group(group)
      ->needs(graphs);
  app.add_option("--moe-layer-freq", options.moe_layer_freq,
                 "layers with experts: every n-th, or a list like [0,1,1]")
      ->capture_default_str()
      ->group(group)
      ->needs(graphs);
  size("--moe-router-topk", options.layer.topk, 1024, "experts per token");
  size("--ep", options.layer.ep, 65536, "expert parallel ranks");
  size("--etp", options.layer.etp, 65536, "expert tensor parallel ranks");
  app.add_option("--moe-num-echo-experts", options.layer.slots, "replica slots of all ep ranks together")
      ->check(CLI::Range(0, 65536))
      ->group(group)
      ->needs(graphs);
  app.footer(
      "Example:\n  metroplex schedule --pp 4 --vpp 2 --microbatches 8 --svg interleaved.svg\n"
      "  metroplex schedule --sequence --help     how context-parallel ranks share a sequence\n"
      "  metroplex schedule --hybrid --help       how they share the documents of a global batch");
}

struct Graphs {
  std::vector<plan::GraphPlan> plans;  // one per rank
  std::vector<draw::GraphNumbers> numbers;
};

std::vector<int> layers_of_stages(const plan::PipelineTable& table, const ScheduleOptions& options) {
  const auto stages = static_cast<size_t>(table.placement().stages());
  std::vector<int> of_stage(stages, 0);
  if (options.layout.empty()) {
    const auto chunks = static_cast<int>(stages);
    const int layers = options.layers == 0 ? chunks : static_cast<int>(options.layers);
    MPX_CHECK(layers % chunks == 0, "plan", "--layers ", layers, ": must be divisible by --pp ", table.num_stages,
              " x --vpp ", table.num_chunks, "; choose a multiple of ", chunks,
              ", or set the layers of each stage with --layout");
    of_stage.assign(stages, layers / chunks);
    return of_stage;
  }
  MPX_CHECK(options.layers == 0, "plan", "--layers ", options.layers,
            " excludes --layout, which sets the layers; keep one");
  const plan::PipelineLayout layout = plan::parse_layout(options.layout, table.num_stages);
  MPX_CHECK(layout.stages.size() == stages, "plan", "--layout ", options.layout, " has ", layout.num_chunks(),
            " chunks per rank, the schedule has ", table.num_chunks, "; give --vpp ", layout.num_chunks());
  int64_t layers = 0, ahead = 0;
  for (const auto& kinds : layout.stages) {
    layers += std::count(kinds.begin(), kinds.end(), plan::LayerKind::decoder);
    ahead += std::count(kinds.begin(), kinds.end(), plan::LayerKind::mtp);
  }
  plan::check_layout(layout, layers, ahead);
  for (size_t stage = 0; stage < stages; ++stage) {
    const auto& kinds = layout.stages[stage];
    of_stage[stage] = static_cast<int>(std::count(kinds.begin(), kinds.end(), plan::LayerKind::decoder));
  }
  return of_stage;
}

std::vector<std::string> list_modules(const std::vector<std::string>& lists) {
  std::vector<std::string> words;
  for (const std::string& list : lists) {
    if (list.empty()) continue;
    for (const std::string& word : config::comma_list(list)) {
      MPX_CHECK(word != "mamba" && !config::cuda_graph_module_set({word}).empty(), "plan", "--cuda-graph-modules ",
                word, ": is not a module; choose from attn, mlp, moe, moe_router, moe_preprocess");
      words.push_back(word);
    }
  }
  return words;
}

// Rejects the same module combinations that training rejects. experts[i] is true if layer i has experts.
void check_modules(const ScheduleOptions& options, const std::vector<bool>& experts) {
  config::TransformerSettings settings;
  settings.graphs = {options.impl, list_modules(options.modules)};
  settings.experts.some_layers_dense = std::find(experts.begin(), experts.end(), false) != experts.end();
  if (std::find(experts.begin(), experts.end(), true) != experts.end())
    settings.experts.num_moe_experts = options.layer.num_experts;
  const std::vector<config::Violation> broken = config::graph_violations(settings);
  MPX_CHECK(broken.empty(), "plan", config::message(broken));
}

constexpr int kDense = 0, kExperts = 1;  // layer signatures

std::map<int, plan::GraphTensors> graph_tensors(const ScheduleOptions& options,
                                                const config::CudaGraphModules& modules) {
  std::map<int, plan::GraphTensors> tensors;
  for (const int kind : {kDense, kExperts}) {
    plan::CapturedLayer layer = options.layer;
    layer.tokens = options.seq_length * options.micro_batch_size;
    layer.exchanges = layer.ep * layer.etp > 1;
    if (kind == kDense) layer.num_experts = layer.slots = 0;
    if (const auto captured = plan::captured_tensors(layer, modules)) tensors[kind] = *captured;
  }
  return tensors;
}

// Checks that byte counts fit into 63 bits. `most`: upper bound on captured layer passes on one rank, assuming that
// no passes share an instance.
void check_bytes(const ScheduleOptions& options, double most) {
  const plan::CapturedLayer& layer = options.layer;
  const auto real = [](int64_t count) { return static_cast<double>(count); };
  const double tokens = real(options.seq_length) * real(options.micro_batch_size);
  const double of_token = std::max({real(layer.hidden_size * layer.element), real(layer.topk * layer.etp * 8),
                                    real(layer.num_experts * (layer.probability + 1))});
  const double splits = real(layer.etp * layer.ep) * real((layer.num_experts + layer.slots) * 8);
  constexpr double kTensors = 16;  // exceeds the number of input, result, integer, gradient and stored tensors
  MPX_CHECK(
      kTensors * most * std::max(tokens * of_token, splits) < 0x1p63, "plan", "--seq-length ", options.seq_length,
      " x --micro-batch-size ", options.micro_batch_size, " tokens of --hidden-size ", layer.hidden_size,
      " (--bytes-per-element ", layer.element, ", --num-experts ", layer.num_experts, ", --moe-router-topk ",
      layer.topk, ", --ep ", layer.ep, ", --etp ", layer.etp, ") in ", most,
      " passes of layers on a rank may exceed 2^63 - 1 bytes, the most that can be counted; choose smaller sizes");
}

Graphs plan_all(const plan::PipelineTable& table, const ScheduleOptions& options) {
  const std::vector<std::string> words = list_modules(options.modules);
  const config::CudaGraphModules modules =
      words.empty() ? config::CudaGraphModules{} : config::cuda_graph_module_set(words);
  const std::vector<int> of_stage = layers_of_stages(table, options);
  const int layers_of_chunk = *std::max_element(of_stage.begin(), of_stage.end());
  check_bytes(options,
              std::max(1.0, static_cast<double>(layers_of_chunk) * table.num_chunks * table.num_microbatches));
  const std::map<int, plan::GraphTensors> tensors = graph_tensors(options, modules);
  config::Model model;
  model.num_layers = std::accumulate(of_stage.begin(), of_stage.end(), 0);
  model.num_moe_experts = options.layer.num_experts;
  model.moe_layer_freq = options.moe_layer_freq;
  const std::vector<bool> experts = config::moe_layers(model);
  check_modules(options, experts);
  std::vector<plan::GraphLayers> layers(static_cast<size_t>(table.num_stages));
  size_t number = 0;
  for (size_t stage = 0; stage < of_stage.size(); ++stage) {
    auto& chunks = layers[static_cast<size_t>(table.placement().place_of(static_cast<int>(stage)).rank)].signatures;
    chunks.emplace_back();
    for (int layer = 0; layer < of_stage[stage]; ++layer) {
      const int kind = experts[number++] ? kExperts : kDense;
      if (tensors.count(kind) > 0) chunks.back().push_back(kind);
    }
  }
  plan::CapturedLayer store = options.layer;
  store.tokens = options.seq_length * options.micro_batch_size;
  const auto exit = plan::graph_exit(modules, store.num_experts > 0);
  const std::map<int, int64_t> stores{{kExperts, exit ? plan::megatron_store_bytes(store, *exit) : 0}};
  Graphs graphs;
  for (int rank = 0; rank < table.num_stages; ++rank) {
    const plan::GraphLayers& captured = layers[static_cast<size_t>(rank)];
    graphs.plans.push_back(plan::plan_graphs(table, rank, captured));
    plan::verify_graphs(graphs.plans.back(), table, rank);
    graphs.numbers.push_back(draw::graph_numbers(graphs.plans.back(), table, rank, captured, tensors, stores));
  }
  return graphs;
}

nlohmann::json to_json(const plan::GraphPlan& plan, const draw::GraphNumbers& numbers) {
  nlohmann::json captures = nlohmann::json::array();
  for (const plan::GraphCapture& capture : plan.captures) {
    captures.push_back({{"kind", plan::action_name(capture.kind)},
                        {"chunk", capture.chunk},
                        {"layer", capture.layer},
                        {"instance", capture.instance},
                        {"microbatch", capture.microbatch}});
  }
  return {{"layers_of_chunk", plan.layers_of_chunk},
          {"instances", plan.num_instances},
          {"instance_of_microbatch", plan.instance_of},
          {"graphs", numbers.graphs},
          {"megatron_graphs", numbers.megatron_graphs},
          {"bound", numbers.bound},
          {"megatron_sets", numbers.megatron_sets},
          {"megatron_sets_in_turns", numbers.megatron_sets_in_turns},
          {"input_bytes", numbers.bytes.inputs},
          {"result_bytes", numbers.bytes.results},
          {"gradient_bytes", numbers.bytes.gradients + numbers.bytes.input_gradients},
          {"megatron_input_bytes", numbers.megatron_inputs},
          {"megatron_store_bytes", numbers.megatron_stores},
          {"captures", captures}};
}

double formula_bubble_share(const plan::PipelineTable& table) {
  return replay::formula_bubble_share(table.num_stages, table.num_chunks, table.num_microbatches,
                                      table.splits_backward());
}

nlohmann::json to_json(const plan::PipelineTable& table, const replay::Timeline& timeline, const Graphs* graphs) {
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
          {"formula_bubble_share", formula_bubble_share(table)},
          {"ranks", ranks}};
}

// Rejects options that the schedule or --compare would ignore.
void check_applicable(const CLI::App& app, const ScheduleOptions& options) {
  const auto given = [&](const char* option) { return app.count(option) > 0; };
  if (options.compare) {
    for (const char* const option :
         {"--schedule", "--vpp", "--group-size", "--forward-only", "--overlap-p2p", "--overlap-experts", "--blocking",
          "--svg", "--json", "--table", "--graphs", "--columns"})
      MPX_CHECK(!given(option), "plan", option,
                " excludes --compare, which prints all schedules; remove one of them");
    return;
  }
  config::Parallel parallel;
  parallel.pipeline_model_parallel_size = options.request.num_stages;
  parallel.virtual_pipeline_model_parallel_size = options.request.num_chunks;
  parallel.pipeline_schedule = options.schedule;
  const config::Choice<config::Schedule> schedule = config::schedule(parallel);
  const auto needs = [&](const char* option, bool applies, const char* schedules) {
    MPX_CHECK(!given(option) || applies, "plan", option, " has no effect with the schedule ", schedule,
              "; it is for ", schedules);
  };
  using config::Schedule;
  needs("--live", schedule == Schedule::searched, "searched and --compare");
  needs("--group-size", schedule == Schedule::interleaved, "interleaved");
  needs("--overlap-p2p", schedule == Schedule::interleaved, "interleaved");
  needs("--overlap-experts",
        schedule == Schedule::none || schedule == Schedule::one_f_one_b || schedule == Schedule::interleaved ||
            schedule == Schedule::dualpipe_v,
        "none, 1f1b, interleaved, and dualpipe_v");
}

double mean_factor(const std::vector<double>& factors) {
  return factors.empty() ? 1 : std::accumulate(factors.begin(), factors.end(), 0.0) / double(factors.size());
}

// Sets the times of a searched schedule and the stages' factors of the timeline.
void set_times(ScheduleOptions& options) {
  replay::TimelineCosts& costs = options.costs;
  plan::ActionTimes& times = options.request.times;
  costs.weight = options.weight.value_or(costs.backward / 2);
  MPX_CHECK(costs.weight <= costs.backward, "plan", "--weight ", costs.weight, ": is part of --backward ",
            costs.backward, "; give at most that");
  const auto ranks = static_cast<size_t>(options.request.num_stages);
  MPX_CHECK(times.scale.empty() || times.scale.size() == ranks, "plan", "--rank-factors has ", times.scale.size(),
            " numbers for --pp ", ranks, "; give one per rank");
  times.forward = costs.forward, times.backward = costs.backward - costs.weight, times.weight = costs.weight;
  times.p2p = costs.p2p;
}

void print_comparison(const ScheduleOptions& options) {
  plan::SearchRequest request;
  request.num_stages = options.request.num_stages;
  request.num_microbatches = options.request.num_microbatches;
  request.times = options.request.times;
  const auto ranks = static_cast<size_t>(request.num_stages);
  const int live = options.request.live_microbatches > 0 ? options.request.live_microbatches : request.num_stages;
  request.live_limits.assign(ranks, live);
  plan::FoundSchedule searched = plan::search_schedule(request);
  searched.table.name = "searched";
  request.live_limits.assign(ranks, std::max(2 * request.num_stages, request.num_microbatches));  // any schedule
  std::vector<plan::FoundSchedule> rows = plan::fixed_schedules(request);
  rows.push_back(std::move(searched));
  const double busy = request.num_microbatches * (options.costs.forward + options.costs.backward) *
                      mean_factor(options.request.times.scale);
  std::cout << "schedule    vpp    length    bubble   live microbatches\n";
  for (const plan::FoundSchedule& row : rows) {
    const std::vector<int> peaks = plan::inspect_table(row.table).peak_live_activations;
    char line[128];
    const double most = static_cast<double>(*std::max_element(peaks.begin(), peaks.end())) / row.table.num_chunks;
    std::snprintf(line, sizeof line, "%-10s %4d %9.6g  %6.2f %%   %.1f%s\n", row.table.name.c_str(),
                  row.table.num_chunks, row.length, row.length > 0 ? 100 * (1 - busy / row.length) : 0, most,
                  most > live ? ", more than --live" : "");
    std::cout << line;
  }
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

}  // namespace

int run_schedule(const std::vector<std::string>& arguments) {
  const auto given = [&](const char* option) {
    return std::find(arguments.begin(), arguments.end(), option) != arguments.end();
  };
  MPX_CHECK(
      !given("--hybrid") || !given("--graphs"), "plan",
      "--graphs excludes --hybrid: with parallel.hybrid_context_parallel, the microbatches of a rank change at every "
      "step, so nothing is captured (train.cuda_graph_impl = none); leave one of the two out");
  if (given("--sequence")) return run_sequence(arguments);
  if (given("--hybrid")) return run_hybrid(arguments);
  CLI::App app(
      "Draws a pipeline schedule: when each rank runs each microbatch, how long it idles (next to the\n"
      "textbook formula), and how many activations it stores. Training runs the same table.",
      "metroplex schedule");
  ScheduleOptions options;
  options.request.num_stages = 4;
  options.request.num_microbatches = 8;
  declare(app, options);
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;

  set_times(options);
  check_applicable(app, options);
  if (options.compare) {
    print_comparison(options);
    return 0;
  }
  const auto table = plan::build_schedule(options.schedule, options.request);
  plan::verify(table);
  options.costs.stage_scale = plan::chunk_times(options.request.times, table.placement()).scale;
  const auto timeline = replay::replay(table, options.costs);
  const bool parts = options.graphs && options.impl != "full_iteration";
  if (options.graphs && !parts) {
    if (app.count("--cuda-graph-modules") == 0) options.modules.clear();
    check_modules(options, {});
  }
  const Graphs graphs = parts ? plan_all(table, options) : Graphs{};
  if (!options.svg.empty()) files::PosixFileSystem().write_output(options.svg, draw::draw_svg(table, timeline));
  if (options.json) {
    std::cout << json_text(to_json(table, timeline, parts ? &graphs : nullptr)) << "\n";
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
  write_styled(std::cout, draw::draw_text(table, timeline, options.draw));
  std::cout << "bubble of all ranks " << 100 * timeline.total_bubble_share << " %, by formula "
            << 100 * formula_bubble_share(table) << " %; length " << timeline.length << "\n";
  if (options.graphs && !parts) {
    std::cout << "\ngraphs of every rank: 2, a training step and an evaluation, with all microbatches, chunks and "
                 "sends; no layer passes tensors between graphs\n";
  }
  if (parts) {
    std::cout << "\n";
    write_styled(std::cout, draw::draw_graphs(table, timeline, graphs.plans, graphs.numbers, options.draw));
  }
  return 0;
}

}  // namespace metroplex::apps
