// echo_bench: compares systems for balancing expert rows on the same counts, with modelled times. Prints Markdown.
#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "echo_model/routing_counts.h"
#include "parts.h"

namespace {

using namespace metroplex;

void print(const bench::Options& options, int64_t tokens, const std::string& trace, const std::string& counts) {
  // The models' experts must be divisible among the ranks, and an imbalance of 5 must be possible.
  const bool fits = 128 % options.ranks == 0 && options.ranks >= 8;
  MPX_CHECK(!trace.empty() || !counts.empty() || fits, "bench", "--ranks ", options.ranks,
            " cannot share made-up counts; choose 8, 16, 32, 64 or 128, or give --trace or --counts");
  bench::Model model = bench::deepseek_v3(tokens);
  if (options.hidden > 0) {
    model = {"experts", model.experts, model.topk, {}};
    model.layer.hidden = options.hidden;
    model.layer.ffn = options.ffn;
    model.layer.tokens = tokens;
  }
  print_assumptions(model, options);
  if (!trace.empty() || !counts.empty()) {
    files::PosixFileSystem disk;
    if (!trace.empty()) print_recorded(files::read_expert_trace(disk, trace), trace, model, options);
    if (!counts.empty()) print_recorded(bench::read_routing_counts(counts), counts, model, options);
    return;
  }
  std::printf("## Against UltraEP's figures\n\n");
  print_ultra_ep(options);
  std::printf("## Where clones pay\n\n");
  print_gain(options);
  std::printf("## Clones against balance\n\n");
  print_replicas(options);
  std::printf("## Systems on the same counts\n\n");
  print_synthetic(model, options);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Options options;
  std::string trace, counts;
  int64_t tokens = 8192;
  CLI::App app("Compares systems that share the rows of experts out, on the same counts");
  app.add_option("--trace", trace, "counts as train.expert_trace_file has them");
  app.add_option("--counts", counts, "counts as CSV or JSON lines of step, layer, expert, count");
  app.add_option("--ranks", options.ranks, "that hold the experts")->check(CLI::Range(1, 1024));
  app.add_option("--slots", options.slots, "for clones, of a rank")->check(CLI::Range(1, 16));
  auto* const hidden = app.add_option("--hidden", options.hidden,
                                      "width of the model, where it is not DeepSeek-V3's; "
                                      "then no other work hides gradients");
  auto* const ffn = app.add_option("--ffn", options.ffn, "inner width of an expert");
  hidden->needs(ffn)->check(CLI::Range(1, 1 << 20));
  ffn->needs(hidden)->check(CLI::Range(1, 1 << 20));
  app.add_option("--tokens", tokens, "of a rank, of made-up counts")->check(CLI::Range(1, 1 << 24));
  app.add_option("--steps", options.steps, "of made-up counts")->check(CLI::Range(2, 100000));
  app.add_option("--warm-up", options.warm_up, "steps that are history only")->check(CLI::Range(0, 100000));
  app.add_flag("--all", options.all, "a table of each trace");
  app.add_option("--svg", options.svg_folder, "folder for pictures");
  app.add_option("--name", options.svg_name, "how their names begin");
  CLI11_PARSE(app, argc, argv);
  try {
    if (options.warm_up >= options.steps) options.warm_up = options.steps / 2;
    print(options, tokens, trace, counts);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "echo_bench: %s\n", error.what());
    return 1;
  }
}
