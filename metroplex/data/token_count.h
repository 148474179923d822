// Counts the tokens of the training data from the index files, without building or writing anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "files/file_system.h"

namespace metroplex::data {

struct SourceTokens {
  std::string prefix;                 // "mock" for mock data
  std::string problem;                // why it could not be read; empty: no problem
  int64_t documents = 0, tokens = 0;  // of the training split
  double share = 0;                   // of the samples: by weight, or by tokens if there are no weights
};

// The sources of the training split, in the order of the config. Throws base::Error only for wrong keys; a missing or
// damaged file is reported in `problem`.
std::vector<SourceTokens> training_tokens(const config::Data& config, files::FileSystem& disk);

}  // namespace metroplex::data
