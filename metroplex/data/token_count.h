// How many tokens a run will find for training, and where, by a look at the index files: nothing is built or written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/data.h"
#include "files/file_system.h"

namespace metroplex::data {

struct SourceTokens {
  std::string prefix;                 // "mock" for mock data
  std::string problem;                // why it could not be read; empty: it was
  int64_t documents = 0, tokens = 0;  // of the training split
  double share = 0;                   // of the samples: by weight, or without weights by tokens
};

// The sources of the training split, in the order of the config. Throws base::Error only where the keys themselves
// are wrong; a file that is missing or damaged is told in `problem`.
std::vector<SourceTokens> training_tokens(const config::Data& config, files::FileSystem& disk);

}  // namespace metroplex::data
