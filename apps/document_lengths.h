// --lengths and --lengths-file of commands that draw plans for packed documents.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/command.h"

namespace metroplex::apps {

struct DocumentLengths {
  std::vector<int64_t> lengths;
  std::string file;
};

// `of_what` is the end of the help text after "tokens of each document".
void declare_lengths(CLI::App& app, const std::string& of_what, DocumentLengths& options);
// Returns the lengths, each from 1 to 2^31 - 1 tokens. Throws base::Error for no lengths, and for a file with other
// content.
std::vector<int64_t> read_lengths(const DocumentLengths& options);

}  // namespace metroplex::apps
