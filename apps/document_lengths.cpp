#include "apps/document_lengths.h"

#include <fstream>

#include "base/error.h"

namespace metroplex::apps {

static constexpr int64_t kMostTokens = (int64_t{1} << 31) - 1;

void declare_lengths(CLI::App& app, const std::string& of_what, DocumentLengths& options) {
  CLI::Option* lengths =
      app.add_option("--lengths", options.lengths, "tokens of each document" + of_what + ", separated by commas")
          ->delimiter(',')
          ->check(CLI::Range(int64_t{1}, kMostTokens));
  app.add_option("--lengths-file", options.file, "the same from a file, separated by spaces or newlines")
      ->excludes(lengths);
}

std::vector<int64_t> lengths_of(const DocumentLengths& options) {
  std::vector<int64_t> lengths = options.lengths;
  if (!options.file.empty()) {
    std::ifstream file(options.file);
    MPX_CHECK(file.good(), "files", "cannot read '", options.file, "'; does it exist?");
    int64_t length = 0;
    while (file >> length && length >= 1 && length <= kMostTokens) lengths.push_back(length);
    MPX_CHECK(file.eof(), "files", "'", options.file, "': entry ", lengths.size() + 1, " is not a number from 1 to ",
              kMostTokens, "; list the tokens of each document, separated by spaces or newlines");
  }
  MPX_CHECK(!lengths.empty(), "plan",
            "no documents; give --lengths 137,2041,... (one number per document) or --lengths-file");
  return lengths;
}

}  // namespace metroplex::apps
