// metroplex schedule --hybrid: draws the assignment of a global batch's documents to ranks with hybrid context
// parallelism.
#include <iostream>

#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/console.h"
#include "apps/commands.h"
#include "apps/document_lengths.h"
#include "base/error.h"
#include "draw/hybrid.h"

namespace metroplex::apps {
namespace {

struct HybridOptions {
  plan::HybridRequest request;
  DocumentLengths documents;
  int64_t seq_length = 0;
  int columns = 0;
  bool json = false, hybrid = false;
};

void declare(CLI::App& app, HybridOptions& options) {
  app.add_flag("--hybrid", options.hybrid,
               "draw a plan of hybrid context parallelism (this page), which captures no graphs");
  app.add_option("--ranks", options.request.ranks, "ranks of dp x cp")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--seq-length", options.seq_length, "tokens of a sample; default: all documents form one sample")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--max-seqlen-per-dp-cp-rank", options.request.max_tokens,
                 "maximum tokens of a microbatch on a rank")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->required();
  declare_lengths(app, " of the global batch", options.documents);
  app.add_option("--pair-cost", options.request.pair_cost,
                 "cost of a query-key pair, where a token costs 1; training computes it from the model")
      ->check(no_number)
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option(
         "--microbatch-cost", options.request.microbatch_cost,
         "cost of a microbatch in addition to its tokens and pairs; training uses 1/16 of the tokens that fit")
      ->check(no_number)
      ->check(CLI::Range(0.0, 1e12))
      ->capture_default_str();
  app.add_option("--multiple", options.request.multiple, "a rank's tokens are a multiple of this")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_flag("--json", options.json, "print the microbatches in order instead of the picture");
  app.add_option("--columns", options.columns, "columns for the time; default: as many as fit the terminal, or 60")
      ->check(CLI::Range(10, 100000));
  app.footer(
      "Example:\n  metroplex schedule --hybrid --ranks 4 --max-seqlen-per-dp-cp-rank 1024 --lengths "
      "137,2041,89,1829");
}

// Documents that cross the end of a sample continue in the next one.
plan::DocumentLengths pack_samples(const std::vector<int64_t>& lengths, int64_t seq_length) {
  plan::DocumentLengths samples;
  int64_t remaining = 0;
  for (int64_t left : lengths) {
    while (left > 0) {
      if (remaining == 0) samples.emplace_back(), remaining = seq_length;
      samples.back().push_back(std::min(left, remaining));
      left -= samples.back().back();
      remaining -= samples.back().back();
    }
  }
  MPX_CHECK(remaining == 0, "plan", "the last sample is missing ", remaining, " of ", seq_length,
            " tokens; give more documents, or another --seq-length");
  return samples;
}

plan::DocumentLengths read_documents(const HybridOptions& options) {
  const std::vector<int64_t> lengths = read_lengths(options.documents);
  return options.seq_length == 0 ? plan::DocumentLengths{lengths} : pack_samples(lengths, options.seq_length);
}

nlohmann::json runs_json(const std::vector<plan::PositionRun>& runs) {
  nlohmann::json json = nlohmann::json::array();
  for (const plan::PositionRun& run : runs) json.push_back({run.first, run.count});
  return json;
}

nlohmann::json plan_json(const plan::HybridPlan& plan) {
  nlohmann::json microbatches = nlohmann::json::array();
  for (const plan::HybridMicrobatch& m : plan.microbatches) {
    microbatches.push_back({{"sample", m.sample},
                            {"documents", runs_json(m.documents)},
                            {"fillers", runs_json(m.fillers)},
                            {"first_rank", m.first_rank},
                            {"ranks", m.ranks},
                            {"cost", m.cost}});
  }
  return {{"span", plan.span}, {"mean", plan.mean()}, {"load", plan.load}, {"microbatches", microbatches}};
}

}  // namespace

int run_hybrid(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Draws which of the dp x cp ranks compute which documents of a global batch with hybrid context\n"
      "parallelism, as parallel.hybrid_context_parallel plans each step.",
      "metroplex schedule --hybrid");
  HybridOptions options;
  options.request.ranks = 4;
  declare(app, options);
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;
  const plan::HybridPlan plan = plan::plan_hybrid_context(read_documents(options), options.request);
  if (options.json) {
    std::cout << json_text(plan_json(plan)) << "\n";
    return 0;
  }
  // The bar shares its line with the rank and its numbers, about 80 columns.
  const int terminal = terminal_of_stdout().columns;
  const int columns = options.columns > 0 ? options.columns : terminal > 0 ? std::max(20, terminal - 80) : 60;
  std::cout << draw::draw_text(plan, columns);
  return 0;
}

}  // namespace metroplex::apps
