// metroplex schedule --sequence: draws how context-parallel ranks share a sequence, the balance of the shares, and
// the keys that are sent.
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/console.h"
#include "apps/commands.h"
#include "apps/document_lengths.h"
#include "base/error.h"
#include "draw/sequence.h"

namespace metroplex::apps {
namespace {

struct SequenceOptions {
  plan::SequenceCutRequest request;
  std::string cut = "balanced", svg;
  DocumentLengths documents;
  int columns = 0;
  bool json = false, sequence = false;
};

void declare(CLI::App& app, SequenceOptions& options) {
  app.add_flag("--sequence", options.sequence,
               "draw shares of a sequence (this page) instead of a pipeline schedule");
  app.add_option("--cp,--context-parallel-size", options.request.cp, "ranks that share the sequence")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--cut", options.cut, "balanced, zigzag or contiguous")->capture_default_str();
  declare_lengths(app, ", in order", options.documents);
  app.add_option("--token-slack", options.request.token_slack,
                 "balanced: a rank's tokens may differ from the mean by this fraction of it")
      ->check(no_number)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--area-slack", options.request.area_slack, "balanced: the same for its share of the attention")
      ->check(no_number)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--multiple", options.request.multiple, "a rank's tokens are a multiple of this")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--svg", options.svg, "also write the picture to this file")->check(no_file);
  app.add_flag("--json", options.json, "print the ranges of every rank and its keys instead of the picture");
  app.add_option("--columns", options.columns, "columns of the bar; default: as many as fit the terminal, or 80")
      ->check(CLI::Range(10, 100000));
  app.footer("Example:\n  metroplex schedule --sequence --cp 4 --lengths 137,2041,89,1829 --token-slack 0.05");
}

nlohmann::json to_json(const plan::PositionRuns& runs) {
  nlohmann::json json = nlohmann::json::array();
  for (const plan::PositionRun& run : runs) json.push_back({run.first, run.count});
  return json;
}

nlohmann::json to_json(const draw::SequencePicture& picture) {
  const plan::CutLoad load = plan::cut_load(picture.documents, picture.cut);
  const auto seen = plan::seen_keys(picture.documents, picture.cut);
  nlohmann::json ranks = nlohmann::json::array();
  for (size_t rank = 0; rank < picture.cut.ranks.size(); ++rank) {
    nlohmann::json from = nlohmann::json::object();
    for (size_t owner = 0; owner < seen.size(); ++owner) {
      if (owner != rank && !seen[rank][owner].empty()) from[std::to_string(owner)] = to_json(seen[rank][owner]);
    }
    ranks.push_back({{"rank", rank},
                     {"runs", to_json(picture.cut.ranks[rank])},
                     {"tokens", load.tokens[rank]},
                     {"area", load.area[rank]},
                     {"keys_from", from}});
  }
  const draw::KeyTraffic traffic = draw::key_traffic(picture.cut, seen);
  return {{"length", picture.cut.length},  {"token_ratio", load.token_ratio}, {"area_ratio", load.area_ratio},
          {"keys_received", traffic.seen}, {"keys_of_a_gather", traffic.all}, {"ranks", ranks}};
}

}  // namespace

int run_sequence(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Draws how context-parallel ranks share a sequence of packed documents: the tokens of each rank, its\n"
      "share of the attention (query-key pairs), and the keys it receives from other ranks.",
      "metroplex schedule --sequence");
  SequenceOptions options;
  options.request.cp = 4;
  declare(app, options);
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;
  options.request.kind = config::Choice<plan::SequenceCutKind>(options.cut);
  draw::SequencePicture picture;
  picture.documents = {read_lengths(options.documents)};
  picture.cut = plan::cut_sequence(picture.documents, options.request);
  picture.title = options.cut;
  if (options.request.kind == plan::SequenceCutKind::balanced)
    picture.title += base::concat(" (slack of tokens ", options.request.token_slack, ")");
  if (!options.svg.empty()) {
    std::ofstream file(options.svg, std::ios::binary);
    file << draw::draw_svg(picture);
    file.close();
    MPX_CHECK(file.good(), "files", "cannot write '", options.svg, "'; does its folder exist, and is the disk full?");
  }
  if (options.json) {
    std::cout << json_text(to_json(picture)) << "\n";
    return 0;
  }
  // The bar shares its line with the rank and its numbers, about 60 columns.
  const int terminal = terminal_of_stdout().columns;
  const int columns = options.columns > 0 ? options.columns : terminal > 0 ? std::max(20, terminal - 60) : 80;
  std::cout << draw::draw_text(picture, columns);
  return 0;
}

}  // namespace metroplex::apps
