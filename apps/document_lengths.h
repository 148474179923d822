// --lengths and --lengths-file of the commands that draw plans for packed documents.
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

// `of_what` ends "tokens of each document".
void declare_lengths(CLI::App& app, const std::string& of_what, DocumentLengths& options);
// Those given, from 1 to 2^31 - 1 tokens each. Throws base::Error for none, and for a file that has anything else.
std::vector<int64_t> lengths_of(const DocumentLengths& options);

}  // namespace metroplex::apps
