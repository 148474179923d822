// metroplex schedule: draws a pipeline schedule as it runs, with its bubble and its live activations.
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/parse.h"
#include "base/error.h"
#include "plan/draw.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"

namespace metroplex::apps {
namespace {

struct Options {
  std::string schedule = "auto";
  plan::ScheduleRequest request;
  plan::TimelineCosts costs;
  plan::DrawOptions draw;
  std::string svg;
  int columns = 0;
  bool json = false, no_color = false, table = false;
};

// COLUMNS, or what the terminal on stdout says of itself; 0: there is none.
int terminal_columns() {
  if (const char* variable = std::getenv("COLUMNS")) {
    if (const int columns = std::atoi(variable); columns > 0) return columns;
  }
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void declare(CLI::App& app, Options& options) {
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
  app.footer("Example:\n  metroplex schedule --pp 4 --vpp 2 --microbatches 8 --svg interleaved.svg");
}

nlohmann::json to_json(const plan::PipelineTable& table, const plan::Timeline& timeline) {
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
  CLI::App app(
      "Draws a pipeline schedule: who runs which microbatch when, how long each rank idles (beside the\n"
      "textbook's formula), and how many activations it holds. The table drawn is the one training runs.",
      "metroplex schedule");
  Options options;
  options.request.num_stages = 4;
  options.request.num_microbatches = 8;
  declare(app, options);
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;

  const auto table = plan::build_schedule(options.schedule, options.request);
  plan::verify(table);
  const auto timeline = plan::replay(table, options.costs);
  if (!options.svg.empty()) write_svg(options.svg, plan::draw_svg(table, timeline));
  if (options.json) {
    std::cout << to_json(table, timeline).dump(2) << "\n";
    return 0;
  }
  if (options.table) {
    print_table(table);
    return 0;
  }
  options.draw.color = !options.no_color && std::getenv("NO_COLOR") == nullptr && isatty(STDOUT_FILENO) != 0;
  if (options.columns > 0) {
    options.draw.max_columns = options.columns;
  } else {
    options.draw.line_columns = terminal_columns();
  }
  std::cout << plan::draw_text(table, timeline, options.draw);
  std::cout << "bubble of all ranks " << 100 * timeline.total_bubble_share << " %, by formula "
            << 100 * plan::formula_bubble_share(table) << " %; length " << timeline.length << "\n";
  return 0;
}

}  // namespace metroplex::apps
