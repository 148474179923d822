// A dataset of twenty short documents. Mock data has hundreds of millions of tokens to shuffle in every run.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "files/file_system.h"
#include "files/indexed_dataset.h"
#include "run/support.h"

namespace metroplex::test {

inline void write_corpus(const std::string& prefix) {
  files::PosixFileSystem disk;
  files::IndexedDatasetWriter writer(disk, prefix, files::TokenType::i32);
  for (int64_t d = 0; d < 20; ++d) {
    std::vector<int64_t> tokens;
    for (int64_t t = 0; t < 12 + d; ++t) tokens.push_back((d * 13 + t * 7 + d * t) % kVocab);
    writer.add_sequence(std::span<const int64_t>(tokens));
    writer.end_document();
  }
  writer.finalize();
}

// Sets the dataset of `config` to a new corpus in `folder`.
inline void use_small_corpus(config::Config& config, const Folder& folder) {
  write_corpus(folder.at("corpus"));
  config.data.mock_data = false;
  config.data.data_path = {folder.at("corpus")};
  config.data.split = "1";
}

}  // namespace metroplex::test
