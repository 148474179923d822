// metroplex plot: draws curves of runs in the terminal.
#include <algorithm>
#include <iostream>

#include "apps/command.h"
#include "apps/commands.h"
#include "apps/console.h"
#include "base/error.h"
#include "base/join.h"
#include "draw/text.h"
#include "files/file_system.h"
#include "page/text_curve.h"

namespace metroplex::apps {
namespace {

struct PlotOptions {
  std::vector<std::string> runs, metrics{"lm loss"};
  int width = 0;
  page::TextChartOptions chart;
  bool list = false, no_color = false;
};

std::vector<std::string> metric_names(const std::vector<page::RunReader>& readers) {
  std::vector<std::string> names;
  for (const page::RunReader& reader : readers) {
    for (const auto& [name, series] : reader.run().metrics) {
      if (!series.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

void print_list(const std::vector<page::RunReader>& readers) {
  for (const page::RunReader& reader : readers) {
    std::cout << reader.run().name << " (" << reader.run().path << ")\n";
    for (const auto& [name, series] : reader.run().metrics) {
      if (series.empty()) continue;
      std::cout << "  " << draw::pad_right(name, 24) << draw::pad_left(std::to_string(series.values.size()), 9)
                << " values, last " << draw::format("%.6g", series.values.back()) << "\n";
    }
  }
}

void print_metric(const std::vector<page::RunReader>& readers, const std::string& metric,
                  const page::TextChartOptions& options) {
  const std::vector<std::string> names = metric_names(readers);
  MPX_CHECK(std::find(names.begin(), names.end(), metric) != names.end(), "config", "--metric ", metric,
            names.empty() ? ": the runs have no steps yet; wait for the first step"
                          : ": is not a metric of these runs; use one of: " + base::join(names, ", "));
  std::vector<page::TextCurve> curves;
  for (const page::RunReader& reader : readers) {
    if (const page::Series* series = reader.run().find(metric)) curves.push_back({reader.run().name, series});
  }
  write_styled(std::cout, page::draw_curves(metric, curves, options));
}

}  // namespace

int run_plot(const std::vector<std::string>& arguments) {
  CLI::App app("Draws curves of runs in the terminal, from their files of train.metrics_file.", "metroplex plot");
  PlotOptions options;
  app.add_option("run", options.runs, "metrics files, or the directories that contain them")->required();
  app.add_option("--metric", options.metrics, "metrics to draw, one picture each; see --list")->capture_default_str();
  app.add_option("--width", options.width, "columns of a picture; default: those of the terminal, or 100")
      ->check(CLI::Range(page::kLeastColumns, 10000));
  app.add_option("--height", options.chart.lines, "lines of a picture")
      ->check(CLI::Range(page::kLeastLines, 1000))
      ->capture_default_str();
  app.add_flag("--ascii", options.chart.ascii, "ASCII marks instead of braille dots");
  app.add_flag("--no-color", options.no_color, "no colors, even on a terminal");
  app.add_flag("--list", options.list, "list the metrics of the runs instead");
  app.footer(
      "Examples:\n  metroplex plot runs/a\n  metroplex plot runs/a runs/b --metric grad-norm --metric learning-rate");
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;
  files::PosixFileSystem disk;
  const std::vector<page::RunReader> readers = page::read_runs(disk, options.runs);
  if (options.list) {
    print_list(readers);
    return 0;
  }
  const Terminal terminal = terminal_of_stdout();
  options.chart.colour = terminal.colour && !options.no_color;
  options.chart.columns = options.width > 0 ? options.width : terminal.columns > 0 ? terminal.columns : 100;
  for (const std::string& metric : options.metrics) print_metric(readers, metric, options.chart);
  return 0;
}

}  // namespace metroplex::apps
