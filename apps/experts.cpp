// metroplex experts: what a run's expert trace shows.
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "base/error.h"
#include "files/expert_picture.h"

namespace metroplex::apps {
namespace {

using Json = nlohmann::json;

struct ExpertsOptions {
  std::string run, svg;
  files::ExpertPictureOptions picture;
  int columns = 0;
  bool json = false, no_color = false;
};

Json layer_json(const files::ExpertTrace& trace, const std::vector<const files::ExpertTraceStep*>& steps,
                size_t layer) {
  const std::vector<int64_t> tokens = files::tokens_of_layer(trace, steps, layer);
  const std::vector<int64_t> ranks = files::tokens_of_ranks(tokens, trace.head.ep);
  const files::LoadQuantiles q = files::quantiles(tokens);
  const files::Imbalance of_experts = files::imbalance_of_layer(trace, steps, layer),
                         of_ranks = files::imbalance_of_layer_ranks(trace, steps, layer);
  return {{"layer", trace.head.layers[layer]},
          {"tokens", tokens},
          {"ranks", ranks},
          {"dropped", files::dropped_of_layer(steps, layer)},
          {"quantiles", {{"min", q.min}, {"p10", q.p10}, {"p50", q.p50}, {"p90", q.p90}, {"max", q.max}}},
          {"experts_max_over_mean", of_experts.together},
          {"experts_max_over_mean_of_a_step", of_experts.mean},
          {"experts_max_over_mean_of_the_worst_step", of_experts.worst},
          {"ranks_max_over_mean", of_ranks.together},
          {"ranks_max_over_mean_of_a_step", of_ranks.mean},
          {"ranks_max_over_mean_of_the_worst_step", of_ranks.worst}};
}

// By layer, and of one layer by iteration too.
Json to_json(const files::ExpertTrace& trace, const files::ExpertPictureOptions& options) {
  files::expert_heats(trace, options);  // refuses what the trace has not
  const auto steps = files::chosen_steps(trace, options);
  const files::ExpertTraceHead& head = trace.head;
  Json out{{"num_experts", head.num_experts}, {"topk", head.topk},      {"ep", head.ep}, {"etp", head.etp},
           {"iterations", Json::array()},     {"layers", Json::array()}};
  for (const auto* step : steps) out["iterations"].push_back(step->iteration);
  for (size_t layer = 0; layer < head.layers.size(); ++layer) {
    if (options.layer && *options.layer != head.layers[layer]) continue;
    Json of = layer_json(trace, steps, layer);
    for (const auto* step : options.layer ? steps : std::vector<const files::ExpertTraceStep*>{})
      of["by_iteration"].push_back(files::tokens_of_layer(trace, {step}, layer));
    out["layers"].push_back(of);
  }
  return out;
}

}  // namespace

int run_experts(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Draws how the tokens of a run were spread over its experts: heat maps of layers by experts, of layers by\n"
      "iterations, and of layers by the ranks that hold the experts, from the file that train.expert_trace_file "
      "names.",
      "metroplex experts");
  ExpertsOptions options;
  app.add_option("run", options.run, "the file, or a folder that holds it")->required();
  app.add_option("--layer", options.picture.layer, "this layer's iterations instead of all layers");
  app.add_option("--iteration", options.picture.iteration, "this iteration alone");
  app.add_option("--svg", options.svg, "also write the picture to this file");
  app.add_flag("--json", options.json, "print the numbers instead of the picture");
  app.add_flag("--no-color", options.no_color, "no colours even on a terminal");
  app.add_option("--columns", options.columns, "columns of a line; left out, those of the terminal, else 100")
      ->check(CLI::Range(20, 100000));
  app.footer("Example:\n  metroplex experts runs/moe/experts.jsonl --layer 3 --svg layer3.svg");
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;

  const files::ExpertTrace trace = files::read_expert_trace(files::find_expert_trace(options.run));
  const Terminal terminal = terminal_of_stdout();
  const int columns = terminal.columns > 0 ? terminal.columns : 100;
  options.picture.columns = options.columns > 0 ? options.columns : columns;
  if (terminal.there)
    options.picture.ink = terminal.colour && !options.no_color ? files::Ink::colour : files::Ink::blocks;
  if (!options.svg.empty()) {
    const std::string svg = files::draw_svg(trace, options.picture);
    std::ofstream file(options.svg, std::ios::binary);
    file << svg;
    file.close();
    MPX_CHECK(file.good(), "files", "cannot write '", options.svg, "'; does its folder exist and is there room?");
  }
  if (options.json) {
    std::cout << to_json(trace, options.picture).dump(2) << "\n";
  } else {
    std::cout << files::draw_text(trace, options.picture);
  }
  return 0;
}

}  // namespace metroplex::apps
