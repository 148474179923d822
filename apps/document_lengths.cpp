#include "apps/document_lengths.h"

#include <charconv>
#include <fstream>
#include <string>
#include <system_error>

#include "base/error.h"

namespace metroplex::apps {

static constexpr int64_t kMaxTokens = (int64_t{1} << 31) - 1;

void declare_lengths(CLI::App& app, const std::string& of_what, DocumentLengths& options) {
  CLI::Option* lengths =
      app.add_option("--lengths", options.lengths, "document lengths in tokens" + of_what + ", comma-separated")
          ->delimiter(',')
          ->check(CLI::Range(int64_t{1}, kMaxTokens));
  app.add_option("--lengths-file", options.file,
                 "file of document lengths in tokens, separated by spaces or newlines")
      ->excludes(lengths);
}

std::vector<int64_t> read_lengths(const DocumentLengths& options) {
  std::vector<int64_t> lengths = options.lengths;
  if (!options.file.empty()) {
    std::ifstream file(options.file);
    MPX_CHECK(file.good(), "files", "cannot read '", options.file, "'; does it exist?");
    for (std::string word; file >> word;) {
      int64_t length = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), length);
      MPX_CHECK(error == std::errc() && end == word.data() + word.size() && length >= 1 && length <= kMaxTokens,
                "files", "'", options.file, "': entry ", lengths.size() + 1, " is not a number from 1 to ",
                kMaxTokens, "; list the tokens of each document, separated by spaces or newlines");
      lengths.push_back(length);
    }
  }
  MPX_CHECK(!lengths.empty(), "plan",
            "no documents; give --lengths 137,2041,... (one number per document) or --lengths-file");
  return lengths;
}

}  // namespace metroplex::apps
